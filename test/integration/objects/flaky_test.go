package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// flaky is an API server that loses, repeats and refuses one call in three.
func (r *rig) flaky(seed uint64) *flakyapi.Proxy {
	p, err := flakyapi.New(r.cfg)
	r.ok(err)
	r.Cleanup(p.Close)
	for i, f := range []flakyapi.Fault{{LoseResponse: true}, {Duplicate: true}, {LoseRequest: true}, {Answer: 409}, {Answer: 500}, {Delay: 100 * time.Millisecond}} {
		p.Add(flakyapi.Rule{Match: flakyapi.Match{Mutating: true}, Fault: f, Probability: .07, Seed: seed*10 + uint64(i)})
	}
	p.Add(flakyapi.Rule{Match: flakyapi.Match{Verbs: []string{"get", "list"}}, Fault: flakyapi.Fault{Answer: 503}, Probability: .1, Seed: seed})
	p.Add(flakyapi.Rule{Match: flakyapi.Match{Verbs: []string{"watch"}}, Fault: flakyapi.Fault{CutAfter: 200 * time.Millisecond}, Probability: .5, Seed: seed})
	return p
}

// Several lives at once, with two operators that know nothing of each other and an API server that
// is flaky to all. The driver's calls are repeated until they succeed, as the sidecars do; then
// every condition of the step holds.
func TestFlakyAPI(t *testing.T) {
	r := start(t, 8*time.Minute)
	for i := range 2 {
		r.operateAt(r.flaky(uint64(i)))
	}
	k, err := operator.Client(r.flaky(7).Config())
	r.ok(err)
	calls, failed := r.lives(objects.New(k), "flaky", 4, 3)
	t.Logf("%d calls of the driver, %d failed", calls, failed)
	if failed == 0 {
		t.Error("the API server was not flaky")
	}
}

// Of two operators one has caches that are behind, as those of a new leader whose API server lags.
// It undoes nothing of what the other one has done for a newer spec.
func TestStaleOperator(t *testing.T) {
	r := start(t, 5*time.Minute)
	behind, err := flakyapi.New(r.cfg)
	r.ok(err)
	t.Cleanup(behind.Close)
	behind.Add(flakyapi.Rule{Match: flakyapi.Match{Verbs: []string{"watch"}}, Fault: flakyapi.Fault{Lag: 300 * time.Millisecond}})
	r.operateAt(behind)
	r.operate()
	r.lives(r.b, "stale", 4, 3)
}

// operateAt runs an operator for the rest of the test that reaches the API server through p.
func (r *rig) operateAt(p *flakyapi.Proxy) {
	r.Helper()
	o, err := operator.Start(r.ctx, p.Config(), r.pair, nil)
	r.ok(err)
	r.Cleanup(func() { _ = o.Stop() })
}

// lives plays a number of lives at once, each so many times, and counts the driver's calls. After
// each step that succeeded its condition holds; nothing is left at the end.
func (r *rig) lives(b *objects.Backend, name string, lives, rounds int) (calls, failed int) {
	r.Helper()
	var all sync.WaitGroup
	errs := make([]error, lives)
	var mu sync.Mutex
	for i := range errs {
		all.Go(func() {
			for round := range rounds {
				for _, s := range r.life(fmt.Sprintf("%s-%d-%d", name, i, round)) {
					for {
						ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
						err := s.do(ctx, b)
						cancel()
						mu.Lock()
						calls++
						if err != nil {
							failed++
						}
						mu.Unlock()
						if err == nil {
							break
						}
						if r.ctx.Err() != nil {
							errs[i] = fmt.Errorf("%s never succeeded: %w", s.name, err)
							return
						}
						time.Sleep(20 * time.Millisecond)
					}
					if s.alone {
						continue
					}
					if err := s.then(); err != nil {
						errs[i] = fmt.Errorf("round %d, %s: %w", round, s.name, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	r.ok(errors.Join(errs...))
	if r.luns() != 0 || r.snapshots() != 0 {
		r.Errorf("%d LUNs and %d snapshots are left", r.luns(), r.snapshots())
	}
	return calls, failed
}
