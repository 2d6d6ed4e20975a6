package node

import (
	"sync"
	"sync/atomic"
)

// tally counts work that may begin while another goroutine waits until none is left, which a
// sync.WaitGroup does not allow. Its zero value is ready.
type tally struct {
	n    atomic.Int64
	mu   sync.Mutex
	none chan struct{} // of the goroutines that wait; nil if there are none
}

// Add counts a piece of work.
func (t *tally) Add() { t.n.Add(1) }

// Done is its end.
func (t *tally) Done() {
	if t.n.Add(-1) > 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.none != nil && t.n.Load() == 0 { // else other work has begun, and its end comes here too
		close(t.none)
		t.none = nil
	}
}

// Wait returns after a moment at which nothing was left: all that was counted before the call is
// over, and what comes later may be at work again.
func (t *tally) Wait() {
	t.mu.Lock()
	if t.n.Load() == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	<-none
}
