package rangelock

import (
	"math/rand/v2"
	"testing"
)

func TestLocksFairAndExclusive(t *testing.T) {
	var l Table
	var order []string
	req := func(name string, off, end int64, shared bool) *Request {
		return &Request{Off: off, End: end, Shared: shared, Granted: func(*Request) { order = append(order, name) }}
	}
	r1, w, r2, far := req("r1", 0, 8, true), req("w", 4, 12, false), req("r2", 0, 8, true), req("far", 12, 16, false)
	if !l.Acquire(r1) || l.Acquire(w) {
		t.Fatal("reader must hold, overlapping writer must wait")
	}
	if l.Acquire(r2) {
		t.Fatal("a reader behind a waiting writer must wait, or writers starve")
	}
	if !l.Acquire(far) {
		t.Fatal("a range that touches nobody must be granted")
	}
	l.Release(r1)
	if len(order) != 1 || order[0] != "w" || r2.Held() {
		t.Fatalf("after the reader the writer alone: %v", order)
	}
	if l.Cancel(w) {
		t.Fatal("a held lock cannot be cancelled")
	}
	l.Release(w)
	if len(order) != 2 || !r2.Held() {
		t.Fatalf("then the second reader: %v", order)
	}
	l.Release(r2)
	l.Release(far)
	if l.Len() != 0 {
		t.Fatal("table must be empty")
	}
}

func TestLocksCancelLetsOthersIn(t *testing.T) {
	var l Table
	a, b, c := &Request{End: 4, Shared: true}, &Request{End: 4}, &Request{End: 4, Shared: true}
	l.Acquire(a)
	l.Acquire(b)
	l.Acquire(c)
	if !l.Cancel(b) || !c.Held() {
		t.Fatal("cancelling the waiting writer must let the reader behind it in")
	}
}

// Random requests against the definition: held ranges never conflict, everyone is served in the
// end, and no request overtakes an earlier conflicting one.
func TestLocksRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := 0; round < 200; round++ {
		var l Table
		seq := map[*Request]int{}
		var live []*Request
		for i := 0; i < 200; i++ {
			if len(live) == 0 || rnd.IntN(3) > 0 && len(live) < 40 {
				off := rnd.Int64N(64)
				r := &Request{Off: off, End: off + 1 + rnd.Int64N(16), Shared: rnd.IntN(2) == 0}
				seq[r] = i
				l.Acquire(r)
				live = append(live, r)
			} else {
				k := rnd.IntN(len(live))
				r := live[k]
				if r.Held() {
					l.Release(r)
				} else if rnd.IntN(4) > 0 || !l.Cancel(r) {
					continue
				}
				live = append(live[:k], live[k+1:]...)
			}
			for _, a := range live {
				free := true
				for _, b := range live {
					if a == b || seq[b] > seq[a] || !conflicts(b, a) {
						continue
					}
					free = false
				}
				if a.Held() != free {
					t.Fatalf("round %d: request %d held=%v, want %v", round, seq[a], a.Held(), free)
				}
			}
		}
	}
}
