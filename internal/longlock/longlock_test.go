package longlock

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneAtATime(t *testing.T) {
	var m Mutex
	var wg sync.WaitGroup
	n := 0
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				m.Lock()
				n++
				m.Unlock()
			}
		})
	}
	wg.Wait()
	if n != 8000 {
		t.Errorf("%d", n)
	}
}

// Its holder may sleep while others wait.
func TestFakeTimeGoesOn(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var m Mutex
		began := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				m.Lock()
				time.Sleep(time.Second)
				m.Unlock()
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("%v", took)
		}
	})
}

func TestUnlockWithoutLock(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("nothing said")
		}
	}()
	new(Mutex).Unlock()
}
