package node

import (
	"sync"
	"sync/atomic"
	"testing"
)

// Work begins and ends all the time while others wait: what was counted before a wait is over after
// it.
func TestTallyWaitsForWhatBeganBefore(t *testing.T) {
	var c tally
	c.Wait() // for nothing
	var busy sync.WaitGroup
	for range 8 {
		busy.Go(func() {
			for range 2000 {
				c.Add()
				c.Done()
			}
		})
	}
	for range 500 {
		var over atomic.Bool
		c.Add()
		go func() {
			over.Store(true)
			c.Done()
		}()
		c.Wait()
		if !over.Load() {
			t.Fatal("the wait ended before the work")
		}
	}
	busy.Wait()
	c.Wait()
}
