// Package keylock has mutexes by name.
package keylock

import "sync"

// Set of mutexes; one that is neither held nor waited for takes no memory. The zero value is ready.
type Set struct {
	mu sync.Mutex
	of map[string]*entry
}

type entry struct {
	sync.Mutex
	users  int
	wanted chan struct{} // of a holder that gives way to others
}

// Lock waits for a name's mutex.
func (s *Set) Lock(name string) (unlock func()) {
	s.mu.Lock()
	if s.of == nil {
		s.of = map[string]*entry{}
	}
	e := s.of[name]
	if e == nil {
		e = &entry{}
		s.of[name] = e
	}
	e.users++
	if e.wanted != nil {
		close(e.wanted)
		e.wanted = nil
	}
	s.mu.Unlock()
	e.Lock()
	return s.unlock(name, e)
}

// TryLock takes a name's mutex if it is neither held nor waited for. wanted is closed as soon as
// another caller waits.
func (s *Set) TryLock(name string) (unlock func(), wanted <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[name] != nil {
		return nil, nil, false
	}
	if s.of == nil {
		s.of = map[string]*entry{}
	}
	e := &entry{users: 1, wanted: make(chan struct{})}
	e.Lock() // no other goroutine has it
	s.of[name] = e
	return s.unlock(name, e), e.wanted, true
}

func (s *Set) unlock(name string, e *entry) func() {
	return func() {
		e.Unlock()
		s.mu.Lock()
		if e.users--; e.users == 0 {
			delete(s.of, name)
		}
		s.mu.Unlock()
	}
}
