// Package longlock has a lock for what may be held while a disk is waited for.
package longlock

import "sync"

// Mutex is a mutual exclusion lock, ready for use as it is. Who waits for it waits on a condition,
// so that in a bubble of testing/synctest fake time continues meanwhile: a sync.Mutex is taken for
// held for a moment, and its holder, which waits for time to pass, would wait for ever.
type Mutex struct {
	mu   sync.Mutex
	free *sync.Cond
	held bool
}

// Lock implements sync.Locker.
func (m *Mutex) Lock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.free == nil {
		m.free = sync.NewCond(&m.mu)
	}
	for m.held {
		m.free.Wait()
	}
	m.held = true
}

// Unlock implements sync.Locker.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.held {
		panic("longlock: unlock of a lock that is not held")
	}
	m.held = false
	m.free.Signal()
}
