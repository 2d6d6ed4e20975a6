// Package tieringsim plays loads against the policy that arranges tiers (dataplane/tiering), beside
// simpler policies and one that knows the load.
package tieringsim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// round of the policy.
const round = 30 * time.Second

// Size of a pool and its load.
type Size struct {
	Extents int     // of the LUN, all written
	Fast    int     // extents that Fast holds
	IOPS    float64 // random reads that the page cache does not have
	Budget  int     // moves in a round
	Hours   int     // of which the second half is judged
}

// Real is a pool of 2 TiB, a tenth of it fast, whose page cache lets 2,000 reads a second through;
// 20 MiB/s may be moved.
var Real = Size{Extents: 1 << 19, Fast: 1 << 19 / 10, IOPS: 2000, Budget: 150, Hours: 24}

// Small is a sixteenth of Real, with as many reads for each extent.
var Small = Size{Extents: 1 << 15, Fast: 1 << 15 / 10, IOPS: 125, Budget: 10, Hours: 24}

// phase is a load that stays the same for a while: how likely a read goes to which extent.
type phase struct {
	extents []int32 // with a chance
	chance  []float32
	other   []int32 // of the alias method
	best    []bool  // by extent: whom one who knows the chances would put on Fast
}

// newPhase is that of weights by extent, of which the highest are best.
func newPhase(weights []float64, fast int) *phase {
	p := &phase{best: make([]bool, len(weights))}
	sum := 0.0
	for e, w := range weights {
		if w > 0 {
			p.extents = append(p.extents, int32(e))
			sum += w
		}
	}
	n := len(p.extents)
	p.chance, p.other = make([]float32, n), make([]int32, n)
	scaled := make([]float64, n)
	var small, large []int32
	for i, e := range p.extents {
		if scaled[i] = weights[e] * float64(n) / sum; scaled[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
		p.chance[i] = 1
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		p.chance[s], p.other[s] = float32(scaled[s]), l
		if scaled[l] -= 1 - scaled[s]; scaled[l] < 1 {
			large, small = large[:len(large)-1], append(small, l)
		}
	}
	order := slices.Clone(p.extents)
	slices.SortFunc(order, func(x, y int32) int { return cmp.Or(cmp.Compare(weights[y], weights[x]), cmp.Compare(x, y)) })
	for _, e := range order[:min(fast, len(order))] {
		p.best[e] = true
	}
	return p
}

func (p *phase) draw(r *rand.Rand) int32 {
	i := r.Int32N(int32(len(p.extents)))
	if r.Float32() >= p.chance[i] {
		i = p.other[i]
	}
	return p.extents[i]
}

// zipf has the chances of a Zipf distribution, in an order of extents.
func zipf(order []int, s float64) []float64 {
	w := make([]float64, len(order))
	for rank, e := range order {
		w[e] = math.Pow(float64(rank+1), -s)
	}
	return w
}

// even is a set of extents that are read alike.
func even(n int, of []int) []float64 {
	w := make([]float64, n)
	for _, e := range of {
		w[e] = 1
	}
	return w
}

// Load is what hosts do for some hours.
type Load struct {
	phases []*phase
	at     func(t time.Duration) int     // which phase
	scan   func(t time.Duration) bool    // a scan of everything is under way
	filled []int                         // extents that are on Fast at the beginning
	reads  func(t time.Duration) float64 // share of Size.IOPS; nil: all
}

// scanned is how many extents a scan reads in a round: 500 MiB/s.
const scanned = 125 * int(round/time.Second)

// Families of loads, by name.
var Families = map[string]func(Size, *rand.Rand) *Load{
	// One skewed load.
	"zipf": func(s Size, r *rand.Rand) *Load {
		return &Load{phases: []*phase{newPhase(zipf(r.Perm(s.Extents), 0.99), s.Fast)}}
	},
	// The same, and every four hours a backup reads everything.
	"scans": func(s Size, r *rand.Rand) *Load {
		whole := time.Duration((s.Extents+scanned-1)/scanned) * round
		return &Load{phases: []*phase{newPhase(zipf(r.Perm(s.Extents), 0.99), s.Fast)},
			scan: func(t time.Duration) bool { return t%(4*time.Hour) < whole }}
	},
	// A set that fits into Fast, of a LUN that lies on Capacity.
	"fits": func(s Size, r *rand.Rand) *Load {
		return &Load{phases: []*phase{newPhase(even(s.Extents, r.Perm(s.Extents)[:s.Fast*8/10]), s.Fast)}}
	},
	// A set three times as large as Fast, evenly warm; Fast is full of it.
	"uniform": func(s Size, r *rand.Rand) *Load {
		set := r.Perm(s.Extents)[:3*s.Fast]
		return &Load{phases: []*phase{newPhase(even(s.Extents, set), s.Fast)}, filled: set[:s.Fast]}
	},
	// Another skewed load by day than by night, and less of it.
	"diurnal": func(s Size, r *rand.Rand) *Load {
		return &Load{phases: []*phase{newPhase(zipf(r.Perm(s.Extents), 0.99), s.Fast), newPhase(zipf(r.Perm(s.Extents), 0.99), s.Fast)},
			at: func(t time.Duration) int { return int(t/(12*time.Hour)) % 2 },
			reads: func(t time.Duration) float64 {
				return 0.6 + 0.4*math.Sin(2*math.Pi*t.Hours()/24)
			}}
	},
	// Two sets that fill Fast take turns, every 20 minutes.
	"swinging": func(s Size, r *rand.Rand) *Load {
		both := r.Perm(s.Extents)[:2*s.Fast]
		return &Load{phases: []*phase{newPhase(even(s.Extents, both[:s.Fast]), s.Fast), newPhase(even(s.Extents, both[s.Fast:]), s.Fast)},
			at: func(t time.Duration) int { return int(t/(20*time.Minute)) % 2 }}
	},
	// A skewed load of which 2 % of the extents change places every hour.
	"drift": func(s Size, r *rand.Rand) *Load {
		l := &Load{at: func(t time.Duration) int { return int(t / time.Hour) }}
		order := r.Perm(s.Extents)
		for range s.Hours {
			l.phases = append(l.phases, newPhase(zipf(order, 0.99), s.Fast))
			order = slices.Clone(order)
			for range s.Extents / 100 {
				x, y := r.IntN(s.Extents), r.IntN(s.Extents)
				order[x], order[y] = order[y], order[x]
			}
		}
		return l
	},
}

func (l *Load) phase(t time.Duration) *phase {
	if l.at == nil {
		return l.phases[0]
	}
	return l.phases[min(l.at(t), len(l.phases)-1)]
}
