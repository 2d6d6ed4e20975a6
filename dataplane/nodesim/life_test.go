package nodesim

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Two faults may kill the same process at the same moment: it ends once.
func TestTwoKillsAtOnce(t *testing.T) {
	underLoad(t, setup{users: 1, workers: 1, think: 10 * time.Millisecond}, func(t *testing.T, w *world) {
		var wg sync.WaitGroup
		var killed atomic.Int64
		for range 2 {
			wg.Go(func() {
				if w.kill(0) {
					killed.Add(1)
				}
			})
		}
		wg.Wait()
		if killed.Load() != 1 {
			t.Errorf("one process was killed %d times", killed.Load())
		}
	})
}
