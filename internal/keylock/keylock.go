// Package keylock has mutexes by name.
package keylock

import "sync"

// Set of mutexes; one that nobody holds or waits for takes no memory. The zero value is ready.
type Set struct {
	mu sync.Mutex
	of map[string]*entry
}

type entry struct {
	sync.Mutex
	users int
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
	s.mu.Unlock()
	e.Lock()
	return func() {
		e.Unlock()
		s.mu.Lock()
		if e.users--; e.users == 0 {
			delete(s.of, name)
		}
		s.mu.Unlock()
	}
}
