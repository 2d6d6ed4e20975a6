package slowdisk

import (
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestPipeKeepsItsRate(t *testing.T) {
	now := time.Unix(1000, 0)
	var p pipe
	p.advance(now, 100)
	a, b := p.add(100), p.add(50)
	if w := p.wait(a, now, 100); w != time.Second {
		t.Errorf("100 bytes at 100 a second wait %v", w)
	}
	if w := p.wait(b, now, 100); w != 1500*time.Millisecond {
		t.Errorf("the next 50 wait %v", w)
	}
	now = now.Add(500 * time.Millisecond)
	p.advance(now, 100) // as set does before the rate changes
	if w := p.wait(a, now, 25); w != 2*time.Second {
		t.Errorf("the other half at a quarter of the rate waits %v", w)
	}
	if w := p.wait(b, now, 0); w != 0 {
		t.Errorf("without a limit it waits %v", w)
	}
	now = now.Add(time.Hour) // idle
	p.advance(now, 100)
	if w := p.wait(p.add(100), now, 100); w != time.Second {
		t.Errorf("after an idle hour 100 bytes wait %v: it has saved up", w)
	}
}

// A flush waits for the writes before it, not for those after it.
func TestFlushWaitsForEarlierWrites(t *testing.T) {
	g := newGate()
	release, started := make(chan struct{}), make(chan struct{}, 2)
	var wg sync.WaitGroup
	held := func(until chan struct{}) {
		wg.Go(func() {
			g.serve(write, 0, 1, func() syscall.Errno {
				started <- struct{}{}
				<-until
				return 0
			})
		})
		<-started
	}
	held(release)
	flushed := make(chan struct{})
	wg.Go(func() {
		g.flush()
		close(flushed)
	})
	eventually(t, "a flush does not wait for the write before it", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.flushes == 1
	})
	later := make(chan struct{})
	held(later)
	close(release)
	select {
	case <-flushed:
	case <-time.After(30 * time.Second):
		t.Error("a flush waits for a write that came after it")
	}
	close(later)
	wg.Wait()
}
