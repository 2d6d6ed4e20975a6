package kernel

import "sync"

// locks is a set of mutexes by name; one that nobody holds or waits for takes no memory.
type locks struct {
	mu sync.Mutex
	of map[string]*lock
}

type lock struct {
	sync.Mutex
	users int
}

func newLocks() *locks { return &locks{of: map[string]*lock{}} }

func (l *locks) lock(name string) (unlock func()) {
	l.mu.Lock()
	m := l.of[name]
	if m == nil {
		m = &lock{}
		l.of[name] = m
	}
	m.users++
	l.mu.Unlock()
	m.Lock()
	return func() {
		m.Unlock()
		l.mu.Lock()
		if m.users--; m.users == 0 {
			delete(l.of, name)
		}
		l.mu.Unlock()
	}
}
