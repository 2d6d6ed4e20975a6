package clock

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// drawn is a machine whose clocks a test draws: between any two readings time passes, threads are
// interrupted, the machine is suspended, and the wall clock is set.
type drawn struct {
	rng    *rand.Rand
	awake  int64 // CLOCK_MONOTONIC, ns
	asleep int64 // what CLOCK_BOOTTIME has more
	set    int64 // what CLOCK_REALTIME has more than CLOCK_BOOTTIME

	calls, sleeps, sets int
	busy                bool   // the machine interrupts threads often
	beside              func() // another thread looks at the clock
}

// now is CLOCK_BOOTTIME.
func (d *drawn) now() int64 { return d.awake + d.asleep }

// pass is what happens between two readings.
func (d *drawn) pass() {
	d.awake += d.rng.Int64N(300)
	often := int64(200)
	if d.busy {
		often = 4
	}
	switch d.rng.Int64N(often) {
	case 0:
		d.awake += d.rng.Int64N(3_000_000) // another thread
	case 1:
		if d.rng.IntN(10) == 0 {
			d.asleep += d.rng.Int64N(60_000) // shorter than can be seen
		}
	case 2:
		if d.rng.IntN(10) == 0 {
			d.sleeps++
			d.asleep += 1_000_000 + d.rng.Int64N(int64(time.Hour))
		}
	case 3:
		if d.rng.IntN(10) == 0 {
			d.sets++
			d.set += d.rng.Int64N(int64(2*time.Hour)) - int64(time.Hour)
		}
	}
}

func (d *drawn) read() (r reading) {
	d.pass()
	if d.beside != nil {
		if d.rng.IntN(4) == 0 {
			d.beside()
		}
		d.awake += d.rng.Int64N(40_000)
	}
	r.wall = d.now() + d.set
	d.pass()
	r.mono = d.awake
	return r
}

func (d *drawn) boot() int64 {
	d.calls++
	d.pass()
	return d.now()
}

func TestSourceFollowsTheMachine(t *testing.T) {
	var sleeps, sets, quick int
	for seed := range uint64(400) {
		d := &drawn{rng: rand.New(rand.NewPCG(seed, 89)), awake: 1e9, set: 1e18, busy: seed%4 == 0}
		s := newSource(d.read, d.boot)
		last := int64(0)
		for i := range 2000 {
			before, calls := d.now(), d.calls
			d.beside = func() { // while this thread looks: with the reference that there is
				d.beside = nil
				if t, ref := d.read(), s.ref.Load(); t.agrees(ref.reading) {
					last = max(last, ref.bootAt(t))
				}
			}
			got := s.now()
			after := d.now()
			if got < before-3*apart || got > after {
				t.Fatalf("seed %d, call %d: %d ns, but CLOCK_BOOTTIME was from %d to %d", seed, i, got-before, 0, after-before)
			}
			if got < last {
				t.Fatalf("seed %d, call %d: the clock went back by %d ns", seed, i, last-got)
			}
			last = got
			if d.calls == calls {
				quick++
			}
		}
		sleeps, sets = sleeps+d.sleeps, sets+d.sets
	}
	t.Logf("%d suspensions, %d steps of the wall clock; %.0f %% of the calls without a system call", sleeps, sets, float64(quick)/8000)
	if sleeps < 1000 || sets < 1000 || quick < 400*2000/2 {
		t.Fatal("too little happened")
	}
}

func TestThreadsShareASource(t *testing.T) {
	var mu sync.Mutex
	last := int64(0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 20_000 {
				mu.Lock()
				now := Boottime()
				if now < last {
					t.Errorf("the clock went back by %d ns", last-now)
				}
				last = now
				mu.Unlock()
				if i%1000 == 0 { // as if the wall clock had been set
					machine.renew()
				}
			}
		})
	}
	wg.Wait()
}
