package node

import (
	"sync"
	"sync/atomic"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// waits are those who wait for the machine or for the peer. Its zero value is ready.
type waits struct {
	proposals waiters[proposalEnd] // for the outcome of an entry, by the machine's number of it
	quiets    waiters[scsi.Result] // until commands are at rest, by a number of next
	calls     waiters[reply]       // for the peer's answer, by a number of next
	next      atomic.Uint64
	standing  signal // for a change of the node's standing
}

// waiters are those who wait for one kind of answer, by number. Its zero value is ready.
type waiters[T any] struct {
	mu sync.Mutex
	by map[uint64]chan T
}

// add has c be taken with the answer of a number.
func (w *waiters[T]) add(id uint64, c chan T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[uint64]chan T{}
	}
	w.by[id] = c
}

// take removes the waiter for a number; nil if there is none, or none any more.
func (w *waiters[T]) take(id uint64) chan T {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.by[id]
	delete(w.by, id)
	return c
}

// fail ends all waits: their channels are closed.
func (w *waiters[T]) fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, c := range w.by {
		close(c)
		delete(w.by, id)
	}
}

// signal tells all who wait that something has changed. Its zero value is ready.
type signal struct {
	mu sync.Mutex
	c  chan struct{} // closed by the next change; nil until it is asked for
}

// next is closed by the next change.
func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}

func (s *signal) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}
