package tiering

import "math"

// rates are what is known of how often the extents of one LUN are used.
type rates struct {
	soon, later []float32 // decaying sums of accesses, by extent
	hotFrom     []int32   // the round since which an extent has been worth a move; 0: it is not
	age         float64   // seconds since the first round
	// What a sum stands for, in seconds, at this age.
	soonFor, laterFor float64
}

func (r *rates) grow(n int) {
	for len(r.soon) < n {
		r.soon, r.later, r.hotFrom = append(r.soon, 0), append(r.later, 0), append(r.hotFrom, 0)
	}
	r.soon, r.later, r.hotFrom = r.soon[:n], r.later[:n], r.hotFrom[:n]
}

// pass lets a round pass, and then counts what came in it.
func (r *rates) pass(seconds float64, counts []Count) {
	a, b := float32(math.Exp(-seconds/soon.Seconds())), float32(math.Exp(-seconds/later.Seconds()))
	for i := range r.soon {
		r.soon[i] *= a
		r.later[i] *= b
	}
	r.age += seconds
	r.soonFor, r.laterFor = standsFor(r.age, soon.Seconds()), standsFor(r.age, later.Seconds())
	for _, c := range counts {
		if c.Extent >= 0 && c.Extent < len(r.soon) {
			n := float32(weight(c))
			r.soon[c.Extent] += n
			r.later[c.Extent] += n
		}
	}
}

func weight(c Count) float64 { return float64(c.Reads) + writeWeight*float64(c.Writes) }

// bounds of the rate of an extent, in accesses a second. Where both averages agree, each narrows
// what the other one says; where they do not, the extent is used otherwise than before, and the
// one that learns soon is right.
func (r *rates) bounds(extent int) (low, high float64) {
	lowSoon, highSoon := interval(float64(r.soon[extent]), r.soonFor)
	lowLater, highLater := interval(float64(r.later[extent]), r.laterFor)
	if low, high = max(lowSoon, lowLater), min(highSoon, highLater); low > high {
		return lowSoon, highSoon
	}
	return low, high
}

// standsFor is how many seconds of a rate a decaying sum has in it: in the end, the length of its
// memory.
func standsFor(age, memory float64) float64 { return memory * (1 - math.Exp(-age/memory)) }

// interval of the rates that may have led to a decaying sum that stands for t seconds. The sum of a
// rate r is about r*t, with a variance of half of that.
func interval(sum, t float64) (low, high float64) {
	if t <= 0 {
		return 0, math.Inf(1)
	}
	const z = sure
	mid, d := sum+z*z/4, z*math.Sqrt(sum/2+z*z/16)
	return max(mid-d, 0) / t, (mid + d) / t
}
