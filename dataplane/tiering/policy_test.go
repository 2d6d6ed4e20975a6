package tiering

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

const testRound = 30 * time.Second

// rig is a pool whose moves are carried out at once.
type rig struct {
	t      *testing.T
	p      *Policy
	luns   []LUN
	room   int
	budget int
	r      *rand.Rand
}

func newRig(t *testing.T, room int, extents ...int) *rig {
	g := &rig{t: t, room: room, budget: 20, r: rand.New(rand.NewPCG(7, 8)),
		p: New(Config{Round: testRound, Saved: 8 * time.Millisecond, Move: 60 * time.Millisecond})}
	for i, n := range extents {
		l := LUN{ID: uint64(i + 1), Place: make([]Tier, n)}
		for e := range l.Place {
			l.Place[e] = Capacity
		}
		g.luns = append(g.luns, l)
	}
	return g
}

// use has extents of a LUN read at a rate, each as chance has it, for one round.
func (g *rig) use(lun, from, to int, perSecond float64) {
	l := &g.luns[lun]
	mean := perSecond * testRound.Seconds()
	for e := from; e < to; e++ {
		n := uint32(0)
		for left := mean; ; n++ {
			if left -= g.r.ExpFloat64(); left < 0 {
				break
			}
		}
		if n > 0 {
			l.Counts = append(l.Counts, Count{Extent: e, Reads: n})
		}
	}
}

// pass ends a round.
func (g *rig) pass() []Move {
	g.t.Helper()
	moves := g.p.Decide(View{LUNs: g.luns, Room: g.room, Budget: g.budget})
	if len(moves) > g.budget {
		g.t.Fatalf("%d moves of %d", len(moves), g.budget)
	}
	for _, m := range moves {
		l := &g.luns[m.LUN-1]
		if l.Place[m.Extent] == m.To || l.Place[m.Extent] == Unwritten {
			g.t.Fatalf("%+v is at %v", m, l.Place[m.Extent])
		}
		l.Place[m.Extent] = m.To
		if n := g.on(Fast); n > g.room {
			g.t.Fatalf("%d extents on Fast, which holds %d", n, g.room)
		}
	}
	for i := range g.luns {
		g.luns[i].Counts = nil
	}
	return moves
}

func (g *rig) on(t Tier) (n int) {
	for _, l := range g.luns {
		for _, at := range l.Place {
			if at == t {
				n++
			}
		}
	}
	return n
}

func (g *rig) fast(lun, from, to int) (n int) {
	for _, at := range g.luns[lun].Place[from:to] {
		if at == Fast {
			n++
		}
	}
	return n
}

func TestHotSetMovesWhole(t *testing.T) {
	g := newRig(t, 100, 1000, 50)
	for range 40 { // 20 minutes
		g.use(0, 300, 380, 0.05)
		g.use(1, 0, 50, 0.0001)
		g.pass()
	}
	if n := g.fast(0, 300, 380); n != 80 || g.on(Fast) != 80 {
		t.Errorf("%d of 80 hot extents are on Fast, %d extents in all", n, g.on(Fast))
	}
	if g.p.Rate(1, 300) < 0.01 || g.p.Rate(1, 0) > 0.001 || g.p.Rate(9, 0) != 0 || g.p.Rate(1, 5000) != 0 {
		t.Error("rates")
	}
}

// A set that is larger than Fast and evenly warm stays where it is.
func TestEvenlyWarmSetStays(t *testing.T) {
	for _, rate := range []float64{0.002, 0.02, 0.5} {
		g := newRig(t, 300, 2000)
		for e := range 300 {
			g.luns[0].Place[3*e] = Fast
		}
		moves := 0
		for range 12 * 120 {
			g.use(0, 0, 900, rate)
			moves += len(g.pass())
		}
		if moves > 9 {
			t.Errorf("%d moves of 900 extents that are read %v times a second", moves, rate)
		}
	}
}

// What is much hotter takes the place of what has cooled down.
func TestNewHotSetTakesOver(t *testing.T) {
	g := newRig(t, 100, 1000)
	for range 60 {
		g.use(0, 0, 90, 0.1)
		g.pass()
	}
	for range 60 {
		g.use(0, 500, 590, 0.1)
		g.pass()
	}
	if n := g.fast(0, 500, 590); n < 85 {
		t.Errorf("%d of 90 extents that are hot now are on Fast", n)
	}
}

func TestPinsAreFollowed(t *testing.T) {
	g := newRig(t, 100, 200, 60, 30)
	for range 40 {
		g.use(0, 0, 99, 0.5)
		g.pass()
	}
	if g.fast(0, 0, 99) != 99 {
		t.Fatal("the hot set is not on Fast")
	}
	g.luns[1].Pin, g.luns[2].Pin = PinFast, PinCapacity
	for range 40 {
		g.use(0, 0, 99, 0.5)
		g.use(2, 0, 30, 2)
		g.pass()
	}
	if g.fast(1, 0, 60) != 60 || g.fast(2, 0, 30) != 0 {
		t.Errorf("on Fast: %d of 60 that are pinned to it, %d that are pinned to Capacity", g.fast(1, 0, 60), g.fast(2, 0, 30))
	}
	if n := g.fast(0, 0, 99); n < 35 {
		t.Errorf("%d hot extents have kept their place, there is room for 39", n)
	}
	g.luns[1].Pin = PinCapacity
	for range 40 {
		g.use(0, 0, 99, 0.5)
		g.pass()
	}
	if g.fast(1, 0, 60) != 0 || g.fast(0, 0, 99) != 99 {
		t.Errorf("on Fast after the pin was changed: %d of its LUN, %d hot ones", g.fast(1, 0, 60), g.fast(0, 0, 99))
	}
}

// Extents that snapshots share stay, on either tier.
func TestFixedExtentsStay(t *testing.T) {
	g := newRig(t, 100, 1000)
	for e := range 50 {
		g.luns[0].Place[e] = Fast
	}
	g.luns[0].Fixed = func(e int) bool { return e < 50 || e%2 == 1 }
	for range 100 {
		g.use(0, 200, 500, 1)
		g.pass()
	}
	if n := g.fast(0, 0, 50); n != 50 {
		t.Errorf("%d of 50 shared extents have stayed on Fast", n)
	}
	for e, at := range g.luns[0].Place[200:] {
		if at == Fast && e%2 == 1 {
			t.Fatalf("extent %d is shared and was moved", 200+e)
		}
	}
	if n := g.fast(0, 200, 500); n < 45 {
		t.Errorf("%d other extents were moved", n)
	}
}

// Writes to extents whose volume was full have filled Fast: a little of it is freed, the coldest
// first.
func TestReserveIsFreed(t *testing.T) {
	g := newRig(t, 200, 1000)
	for range 30 {
		g.use(0, 0, 190, 0.5)
		g.pass()
	}
	for e := 500; g.on(Fast) < 200; e++ {
		g.luns[0].Place[e] = Fast
	}
	g.use(0, 0, 190, 0.5)
	g.pass()
	if n := g.on(Fast); n != 198 || g.fast(0, 0, 190) != 190 {
		t.Errorf("%d extents of 200 are on Fast, %d of 190 hot ones", n, g.fast(0, 0, 190))
	}
}

func TestEqualTiersMoveNothingButPins(t *testing.T) {
	for _, saved := range []time.Duration{0, -time.Millisecond} {
		g := newRig(t, 100, 1000, 10)
		g.p = New(Config{Round: testRound, Saved: saved, Move: 60 * time.Millisecond})
		g.luns[1].Pin = PinFast
		for range 100 {
			g.use(0, 0, 90, 5)
			g.pass()
		}
		if g.fast(0, 0, 1000) != 0 || g.fast(1, 0, 10) != 10 {
			t.Errorf("%v are saved by a read; moved for heat: %d, pinned: %d of 10", saved, g.fast(0, 0, 1000), g.fast(1, 0, 10))
		}
	}
}

// A read now and then does not pay for a move, although Fast is empty.
func TestSeldomUsedExtentsStay(t *testing.T) {
	g := newRig(t, 1000, 1000)
	for range 24 * 120 {
		g.use(0, 0, 500, 1.0/3600)
		g.pass()
	}
	if n := g.on(Fast); n != 0 {
		t.Errorf("%d extents were moved that are read once an hour", n)
	}
}

// Extents that cool down as soon as they were moved teach a longer wait, and those that stay hot a
// shorter one.
func TestMovesThatDoNotPayTeachPatience(t *testing.T) {
	g := newRig(t, 2000, 50_000)
	early, late, rounds := 0, 0, 12*120
	for i := range rounds {
		if from := i / 4 * 10 % 50_000; i%4 == 0 { // half a minute of every two, ten others each time
			g.use(0, from, from+10, 1)
		}
		n := 0
		for _, m := range g.pass() {
			if m.To == Fast {
				n++
			}
		}
		if i < rounds/4 {
			early += n
		} else if i >= 3*rounds/4 {
			late += n
		}
	}
	t.Logf("%d moves in the first quarter, %d in the last; wait %d", early, late, g.p.Wait())
	if early < 50 || late > early/5 || g.p.Wait() < 4 {
		t.Errorf("%d moves in the first quarter, %d in the last; wait %d", early, late, g.p.Wait())
	}
	waited := g.p.Wait()
	for range 6 * 120 {
		g.use(0, 0, 1500, 0.1)
		g.pass()
	}
	if g.p.Wait() >= waited || g.fast(0, 0, 1500) < 1450 {
		t.Errorf("wait %d after %d, %d of 1500 extents that stay hot are on Fast", g.p.Wait(), waited, g.fast(0, 0, 1500))
	}
}

// An extent that was hot for a while, cooled down, and is hot again has to wait again.
func TestWaitBeginsAgain(t *testing.T) {
	g := newRig(t, 100, 10)
	g.p.lessons.wait = 60
	for i := range 5 * 720 {
		if i >= 720 && i%720 == 0 { // every six hours
			g.use(0, 0, 1, 1)
		}
		g.pass()
	}
	if n := g.on(Fast); n > 0 {
		t.Error("an extent was moved that is never hot for as long as the wait")
	}
}

// The same counts lead to the same moves; LUNs that are gone are forgotten, and a LUN may grow.
func TestDecisionsAreRepeatable(t *testing.T) {
	play := func() (all []Move) {
		g := newRig(t, 100, 500, 500)
		for i := range 200 {
			g.use(0, 0, 80, 0.1)
			if len(g.luns) > 1 {
				g.use(1, 40, 90, 0.2)
			}
			if i == 100 {
				g.luns[0].Place = append(g.luns[0].Place, Capacity, Unwritten)
			}
			if i > 100 {
				g.use(0, 500, 502, 1)
				g.luns[0].Counts = append(g.luns[0].Counts, Count{Extent: 9000, Reads: 5}) // beyond the end
			}
			if i == 150 {
				g.luns = g.luns[:1]
			}
			all = append(all, g.pass()...)
		}
		if len(g.p.of) != 1 || g.luns[0].Place[500] != Fast || g.luns[0].Place[501] != Unwritten {
			t.Errorf("%d LUNs are known; %v", len(g.p.of), g.luns[0].Place[500:])
		}
		return all
	}
	if a, b := play(), play(); !reflect.DeepEqual(a, b) || len(a) < 100 {
		t.Errorf("%d and %d moves", len(a), len(b))
	}
}

// A round of a pool of 10 TiB, of which much is warm.
func BenchmarkDecide(b *testing.B) {
	const n = 10 << 40 / ExtentSize
	r := rand.New(rand.NewPCG(1, 1))
	l := LUN{ID: 1, Place: make([]Tier, n)}
	for e := range l.Place {
		if l.Place[e] = Capacity; e%10 == 0 {
			l.Place[e] = Fast
		}
	}
	p := New(Config{Round: testRound, Saved: 8 * time.Millisecond, Move: 60 * time.Millisecond})
	for b.Loop() {
		l.Counts = l.Counts[:0]
		for range 100_000 {
			l.Counts = append(l.Counts, Count{Extent: r.IntN(n), Reads: 1})
		}
		p.Decide(View{LUNs: []LUN{l}, Room: n / 10, Budget: 150})
	}
}
