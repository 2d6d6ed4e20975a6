// Package balancesim plays synthetic histories of work and connectivity against the real package
// balance, beside policies that are simpler and an optimum that knows the future.
package balancesim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
)

// Step is the time between two questions to the policy.
const Step = 5 * time.Second

const (
	second  = int64(time.Second)
	hours   = 3
	steps   = hours * 720
	slowLen = int(balance.SlowWindow / Step)
	fastLen = int(balance.FastWindow / Step)
)

// History is what hosts do in three hours.
type History struct {
	Family string
	Seed   uint64
	luns   []lun
	base   [2]float64
	load   [][]float32 // by LUN and step: work per second of one node
	chairs []int       // steps at which the chair changes
	start  []balance.Node
	idle   bool // nothing is to be balanced
	judged bool // against the optimum
	flap   bool // a history of connectivity: moves are counted
}

type lun struct {
	id    string
	home  balance.Node
	pin   balance.Node
	group string
	cold  float64
	pause float64
	hosts []host
}

// host is active throughout, or never; link says, for each node and instant (ns), whether the host
// can use the node, and since when.
type host struct {
	name   string
	active bool
	share  float64
	link   func(n balance.Node, now int64) (ok bool, since int64)
}

func always(balance.Node, int64) (bool, int64) { return true, -3600 * second }

const familyCount = 13

// families of histories.
var families = [familyCount]struct {
	name string
	make func(h *History, r *rand.Rand)
}{
	{"zipf", zipf}, {"diurnal", diurnal}, {"bursts", bursts}, {"wander", wander}, {"giant", giant},
	{"groups", grouped}, {"pins", pins}, {"chairs", chairs}, {"idle", idle}, {"roll", roll},
	{"flap", flap}, {"disagree", disagree}, {"begins", begins},
}

// Make draws the history of a seed.
func Make(seed uint64) *History {
	r := rand.New(rand.NewPCG(seed, 17))
	f := families[seed%familyCount]
	h := &History{Family: f.name, Seed: seed, judged: true}
	h.base = [2]float64{0.03 + 0.05*r.Float64(), 0.03 + 0.05*r.Float64()}
	f.make(h, r)
	if h.start == nil {
		for i := range h.luns {
			n := balance.Node(i % 2)
			if h.luns[i].home = n; h.luns[i].pin != balance.None {
				n = h.luns[i].pin
			}
			h.start = append(h.start, n)
		}
	}
	return h
}

// populate makes n LUNs without load.
func (h *History) populate(r *rand.Rand, n int) {
	for i := range n {
		h.luns = append(h.luns, lun{id: fmt.Sprintf("lun-%02d", i), pin: balance.None, cold: between(r, 0.5, 15), pause: 0.01 + 0.04*r.Float64(),
			hosts: []host{{name: fmt.Sprintf("host-%d", i), active: true, share: 1, link: always}}})
		h.load = append(h.load, make([]float32, steps))
	}
}

// fill sets loads from a shape, scaled so that both nodes together need total on average, with
// noise.
func (h *History) fill(r *rand.Rand, total float64, shape func(lun, step int) float64) {
	sum := 0.0
	for i := range h.load {
		for t := range h.load[i] {
			x := shape(i, t)
			h.load[i][t] = float32(x)
			sum += x
		}
	}
	scale := total / max(sum/steps, 1e-9)
	for i := range h.load {
		for t := range h.load[i] {
			h.load[i][t] *= float32(scale * (1 + 0.15*(2*r.Float64()-1)))
		}
	}
}

// weights of a Zipf distribution in random order.
func weights(r *rand.Rand, n int, s float64) []float64 {
	w := make([]float64, n)
	for i, p := range r.Perm(n) {
		w[p] = 1 / math.Pow(float64(i+1), s)
	}
	return w
}

func some(r *rand.Rand) int                      { return 4 + r.IntN(7) }
func total(r *rand.Rand) float64                 { return 0.9 + 0.6*r.Float64() }
func between(r *rand.Rand, a, b float64) float64 { return a + (b-a)*r.Float64() }

func zipf(h *History, r *rand.Rand) {
	n := some(r)
	h.populate(r, n)
	w := weights(r, n, between(r, 0.5, 1.5))
	h.fill(r, total(r), func(i, _ int) float64 { return w[i] })
}

// begins is steady work after a time of none: averages climb to it.
func begins(h *History, r *rand.Rand) {
	n := some(r)
	h.populate(r, n)
	w, from := weights(r, n, between(r, 0.3, 1)), make([]int, n)
	for i := range from {
		from[i] = int(between(r, 0, 0.4) * steps)
	}
	at := int(between(r, 0, 0.3) * steps)
	together := r.IntN(2) == 0
	h.fill(r, total(r), func(i, t int) float64 {
		if together && t < at || !together && t < from[i] {
			return 0
		}
		return w[i]
	})
}

func diurnal(h *History, r *rand.Rand) {
	n := some(r)
	h.populate(r, n)
	w, phase := weights(r, n, between(r, 0.3, 1)), make([]float64, n)
	for i := range phase {
		phase[i] = 2 * math.Pi * r.Float64()
	}
	period := between(r, 1.5, 8) * 720
	h.fill(r, total(r), func(i, t int) float64 { return w[i] * (1 + 0.9*math.Sin(phase[i]+2*math.Pi*float64(t)/period)) })
}

func bursts(h *History, r *rand.Rand) {
	n := some(r)
	h.populate(r, n)
	w := weights(r, n, between(r, 0.3, 1))
	on := make([][]bool, n)
	mean := between(r, 12, 360) // steps: from a minute to half an hour
	for i := range on {
		on[i] = make([]bool, steps)
		state := r.IntN(2) == 0
		for t := 0; t < steps; {
			for k := max(1, int(r.ExpFloat64()*mean)); k > 0 && t < steps; k, t = k-1, t+1 {
				on[i][t] = state
			}
			state = !state
		}
	}
	h.fill(r, total(r), func(i, t int) float64 {
		if on[i][t] {
			return w[i]
		}
		return 0.1 * w[i]
	})
}

func wander(h *History, r *rand.Rand) {
	n := some(r)
	h.populate(r, n)
	hot := make([]int, steps)
	for t := 0; t < steps; {
		at := r.IntN(n)
		for k := int(between(r, 0.3, 1.2) * 720); k > 0 && t < steps; k, t = k-1, t+1 {
			hot[t] = at
		}
	}
	h.fill(r, total(r), func(i, t int) float64 {
		if hot[t] == i {
			return float64(n)
		}
		return 1
	})
}

func giant(h *History, r *rand.Rand) {
	n := some(r)
	h.populate(r, n)
	share := between(r, 0.5, 0.8)
	at := r.IntN(n)
	h.fill(r, between(r, 0.8, 1.1), func(i, _ int) float64 {
		if i == at {
			return share * float64(n)
		}
		return 1 - share
	})
}

func grouped(h *History, r *rand.Rand) {
	n := 8
	h.populate(r, n)
	for i := range n {
		if i < 6 {
			h.luns[i].group = fmt.Sprintf("group-%d", i/(2+2*int(h.Seed/12%2)))
		}
	}
	w := weights(r, n, between(r, 0.5, 1.2))
	h.fill(r, total(r), func(i, _ int) float64 { return w[i] })
}

func pins(h *History, r *rand.Rand) {
	n := some(r)
	h.populate(r, n)
	for i := range h.luns {
		if r.IntN(3) == 0 {
			h.luns[i].pin = balance.Node(r.IntN(2))
		}
	}
	w := weights(r, n, between(r, 0.5, 1.2))
	h.fill(r, total(r), func(i, _ int) float64 { return w[i] })
}

func chairs(h *History, r *rand.Rand) {
	wander(h, r)
	for t := 200; t < steps; t += int(between(r, 0.4, 1.5) * 720) {
		h.chairs = append(h.chairs, t)
	}
}

func idle(h *History, r *rand.Rand) {
	wander(h, r)
	h.idle, h.judged = true, false
	for i := range h.load {
		for t := range h.load[i] {
			h.load[i][t] *= 0.15
		}
	}
}

// roll begins as the end of a rolling upgrade does: every LUN is at one node, half of them away
// from home.
func roll(h *History, r *rand.Rand) {
	zipf(h, r)
	n := balance.Node(r.IntN(2))
	for i := range h.luns {
		h.luns[i].home = balance.Node(i % 2)
		h.start = append(h.start, n)
	}
}

// flapping is a link that is up and down in turn; the phase says which comes first.
func flapping(half time.Duration, phase int64, which func(balance.Node) bool) func(balance.Node, int64) (bool, int64) {
	return func(n balance.Node, now int64) (bool, int64) {
		k := now / int64(half)
		up := (k+phase)%2 == 0
		if n == balance.B {
			up = !up
		}
		if !which(n) {
			return true, -3600 * second
		}
		return up, k * int64(half)
	}
}

func both(balance.Node) bool { return true }

// halves are the rates of flapping: from a change a second to one an hour.
var halves = []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 20 * time.Second, 45 * time.Second, 2 * time.Minute,
	5 * time.Minute, 12 * time.Minute, 25 * time.Minute, time.Hour}

// flap has hosts whose links go up and down, alone or two of one LUN with opposite links.
func flap(h *History, r *rand.Rand) {
	h.populate(r, 4)
	h.judged, h.flap = false, true
	half := halves[int(h.Seed/familyCount)%len(halves)]
	half += time.Duration(r.Int64N(int64(half) / 3))
	only := balance.Node(r.IntN(2))
	for i := range h.luns {
		l := &h.luns[i]
		switch i {
		case 0: // two hosts that disagree, and change their minds at once
			l.hosts = []host{{"host-x", true, 0.5, flapping(half, 0, both)}, {"host-y", true, 0.5, flapping(half, 1, both)}}
		case 1: // one host that can use one node at a time
			l.hosts[0].link = flapping(half, 0, both)
		case 2: // one that loses the same node again and again
			l.hosts[0].link = flapping(half, int64(only), func(n balance.Node) bool { return n == only })
		}
	}
	h.fill(r, 0.6, func(int, int) float64 { return 1 })
}

// disagree has a host of a shared LUN that loses its owner for good, while the other host does not.
func disagree(h *History, r *rand.Rand) {
	h.populate(r, 4)
	h.judged, h.flap = false, true
	at := int64(between(r, 600, 4000)) * second
	for i := range 2 {
		l := &h.luns[i]
		share := between(r, 0.1, 0.9)
		l.hosts = []host{{"host-x", true, share, func(n balance.Node, now int64) (bool, int64) {
			if n == balance.A && now >= at {
				return false, at
			}
			return true, -3600 * second
		}}, {"host-y", true, 1 - share, always}}
	}
	h.fill(r, 0.9, func(int, int) float64 { return 1 })
}
