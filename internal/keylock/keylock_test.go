package keylock

import (
	"sync"
	"testing"
)

// Who tries gives way: it takes nothing that somebody has, and hears of the next who wants what it
// has.
func TestTryLock(t *testing.T) {
	var s Set
	unlock := s.Lock("a")
	if _, _, ok := s.TryLock("a"); ok {
		t.Fatal("taken from a holder")
	}
	unlock()
	unlock, wanted, ok := s.TryLock("a")
	if _, _, second := s.TryLock("a"); !ok || second {
		t.Fatal(ok, second)
	}
	s.Lock("b")()
	select {
	case <-wanted:
		t.Fatal("wanted by nobody")
	default:
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { s.Lock("a")() })
	}
	<-wanted
	unlock()
	wg.Wait()
	if len(s.of) != 0 {
		t.Fatal(s.of)
	}
}

func TestOneAtATimeForEachName(t *testing.T) {
	var s Set
	var wg sync.WaitGroup
	n := map[string]*int{"a": new(int), "b": new(int)}
	for range 50 {
		for name, count := range n {
			wg.Go(func() {
				defer s.Lock(name)()
				*count++ // the race detector is the judge
			})
		}
	}
	wg.Wait()
	if *n["a"] != 50 || *n["b"] != 50 || len(s.of) != 0 {
		t.Fatal(*n["a"], *n["b"], s.of)
	}
	unlock := s.Lock("a")
	s.Lock("b")() // does not wait for the other
	unlock()
}
