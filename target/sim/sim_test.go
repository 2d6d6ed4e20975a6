package sim

import "testing"

// fixed are the seeds that gate: a spread, and every seed that ever failed.
func fixed() (seeds []uint64) {
	for s := uint64(1); s <= 60; s++ {
		seeds = append(seeds, s)
	}
	return append(seeds, failedOnce...)
}

// failedOnce found a bug when they were fresh.
var failedOnce = []uint64{15174107334329716945, 16563276758841840558, 13703007846939262945}

// TestFixedSeeds plays the gate's histories; `go run ./hack/sim` plays fresh ones and prints any of them.
func TestFixedSeeds(t *testing.T) {
	var total Total
	for _, seed := range fixed() {
		r := Run(Config{Seed: seed})
		total.Add(r)
		if r.Err != nil {
			t.Errorf("%v\nreplay: go run ./hack/sim -trace %d", r.Err, seed)
		}
		if r.Events < 1000 || r.Operations < 100 {
			t.Errorf("seed %d is too thin: %d events, %d operations", seed, r.Events, r.Operations)
		}
	}
	t.Logf("%d events, %d operations, faults %v, branches %v", total.Events, total.Operations, total.Faults, total.Branches())
	if u := total.Uncovered(); len(u) > 0 {
		t.Errorf("no history took: %v", u)
	}
}

// A seed is one history: played again it is the same to the last event, or a failure could not be replayed.
func TestSeedReplaysExactly(t *testing.T) {
	for _, seed := range []uint64{3, 1 << 60} {
		a, b := Run(Config{Seed: seed, Trace: true}), Run(Config{Seed: seed, Trace: true})
		if a.Events != b.Events || a.Operations != b.Operations || a.String() != b.String() {
			t.Errorf("seed %d: %d and %d events, %d and %d operations", seed, a.Events, b.Events, a.Operations, b.Operations)
		}
	}
}
