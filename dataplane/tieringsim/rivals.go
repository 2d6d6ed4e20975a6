package tieringsim

import (
	"cmp"
	"time"

	"github.com/gemel-storage/gemel/dataplane/tiering"
)

// still moves nothing.
type still struct{ place []tiering.Tier }

func (s *still) fast(e int32) bool                   { return s.place[e] == tiering.Fast }
func (s *still) decide(time.Duration, *accesses) int { return 0 }

// oracle knows the chances of the next round, and moves for nothing.
type oracle struct {
	load *Load
	now  *phase
}

func (o *oracle) fast(e int32) bool {
	if o.now == nil {
		o.now = o.load.phase(0)
	}
	return o.now.best[e]
}

func (o *oracle) decide(t time.Duration, _ *accesses) int {
	o.now = o.load.phase(t + round)
	return 0
}

// rival keeps what was used last, or what was used most so far, as far as its budget goes. It sees
// scans as every other read.
type rival struct {
	s     Size
	place []tiering.Tier
	used  int // extents on Fast
	last  bool
	score []float64 // by extent: when it was used, or how often
}

func newRival(s Size, filled []int, last bool) *rival {
	return &rival{s: s, place: start(s, filled), used: len(filled), last: last, score: make([]float64, s.Extents)}
}

func (v *rival) fast(e int32) bool { return v.place[e] == tiering.Fast }

func (v *rival) decide(t time.Duration, a *accesses) int {
	wanted := tiering.NewTop(v.s.Budget, func(x, y int32) int { return cmp.Or(cmp.Compare(v.score[y], v.score[x]), cmp.Compare(x, y)) })
	cold := tiering.NewTop(v.s.Budget, func(x, y int32) int { return cmp.Or(cmp.Compare(v.score[x], v.score[y]), cmp.Compare(x, y)) })
	use := func(e int32, n uint32) {
		if v.last {
			v.score[e] = t.Seconds() + 1
		} else {
			v.score[e] += float64(n)
		}
		if v.last && v.place[e] != tiering.Fast {
			wanted.Add(e)
		}
	}
	for _, e := range a.touched {
		use(e, a.reads[e])
	}
	for _, e := range a.scanned {
		if !v.last || a.reads[e] == 0 {
			use(e, 1)
		}
	}
	for e, at := range v.place {
		switch {
		case at == tiering.Fast:
			cold.Add(int32(e))
		case !v.last && v.score[e] > 0: // as a score stays, what waits for its turn is wanted for ever
			wanted.Add(int32(e))
		}
	}
	kept := cold.List()
	moves := 0
	for _, e := range wanted.List() {
		if v.used < v.s.Fast && moves < v.s.Budget {
			v.used++
		} else if moves+2 > v.s.Budget || len(kept) == 0 || v.score[kept[0]] >= v.score[e] {
			break
		} else {
			v.place[kept[0]] = tiering.Capacity
			kept = kept[1:]
			moves++
		}
		v.place[e] = tiering.Fast
		moves++
	}
	return moves
}
