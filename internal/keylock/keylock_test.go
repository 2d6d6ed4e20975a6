package keylock

import (
	"sync"
	"testing"
)

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
