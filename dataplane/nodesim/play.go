package nodesim

import (
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// Config of one history.
type Config struct {
	Seed  uint64
	Dir   string    // for the nodes' stores; a filesystem in memory
	Trace io.Writer // what happens; nil: nothing
	Shape string    // in place of the one that the seed draws
	// Members gives the nodes' LUNs several places, between which extents move all the time.
	Members bool
}

// Result of one history.
type Result struct {
	Seed       uint64
	Shape      string
	Violations []string
	Unserved   bool // the nodes did not serve again after the last fault
	Operations int
	Faults     map[string]int
	Branches   map[string]int
	Longest    map[string]time.Duration
	Fake, Real time.Duration
}

// Play plays one history in a bubble of its own.
func Play(t *testing.T, cfg Config) (r Result) {
	began := time.Now()
	r.Seed = cfg.Seed
	dir, err := os.MkdirTemp(cfg.Dir, "history-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var w *world
	defer func() {
		if p := recover(); p != nil { // the bubble ended with goroutines in it
			r.Violations = append(r.Violations, fmt.Sprintf("the bubble: %v", p))
		}
		r.Real = time.Since(began)
	}()
	watch := newWatchdog(cfg.Seed)
	defer watch.stop()
	synctest.Test(t, func(*testing.T) {
		w = newWorld(cfg.Seed, dir, cfg.Trace)
		w.members = cfg.Members
		w.run(cfg.Shape)
		w.mu.Lock()
		defer w.mu.Unlock()
		r.Shape, r.Violations, r.Unserved, r.Operations = w.shape, w.violations, w.unserved, w.operations
		r.Faults, r.Branches, r.Longest, r.Fake = w.counts, w.branches, w.longest, w.now()
	})
	return r
}

// run is a history from beginning to end.
func (w *world) run(want string) {
	rng := w.rand(1)
	s := w.draw(rng, want)
	w.shape = s.name
	w.trace("seed %d: %s", w.seed, s.name)
	if err := w.startNodes(); err != nil {
		w.fail("%v", err)
	} else {
		s.play(w, rng)
	}
	w.finish()
}
