package sim

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// freshTime is how long histories that no run has played are played beside the fixed ones.
const freshTime = 5 * time.Second

// TestFreshSeeds plays histories that no run has played, and reports: a violation is printed with
// the command that replays it, to be fixed and to join failedOnce. It does not fail the run, which
// would depend on chance.
func TestFreshSeeds(t *testing.T) {
	base := rand.Uint64()
	rnd := rand.New(rand.NewPCG(base, 1))
	end := time.Now().Add(freshTime)
	var mu sync.Mutex
	var total Total
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for time.Now().Before(end) {
				mu.Lock()
				seed := rnd.Uint64()
				mu.Unlock()
				r := Run(Config{Seed: seed})
				mu.Lock()
				total.Add(r)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("fresh seeds: %d histories from base %d, %d violations", total.Histories, base, len(total.Failed))
	for _, r := range total.Failed {
		t.Logf("FRESH VIOLATION %v\nreplay: go run ./hack/sim -trace %d", r.Err, r.Seed)
	}
	if total.Histories == 0 {
		t.Error("no history was played")
	}
}
