package objects

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// Many volumes at once, and what they cost the API server: each write is one to etcd.
func TestManyAndTheirWrites(t *testing.T) {
	const n = 40
	r := start(t, 3*time.Minute)
	p, err := flakyapi.New(r.cfg)
	r.ok(err)
	t.Cleanup(p.Close)
	o, err := operator.Start(r.ctx, p.Config(), r.pair, nil)
	r.ok(err)
	t.Cleanup(func() { _ = o.Stop() })
	all := func(what string, writes int, do func(id, name string) error) {
		t.Helper()
		before := p.Counts()
		began := time.Now()
		var wg sync.WaitGroup
		errs := make(chan error, n)
		for i := range n {
			name := fmt.Sprintf("many-%d", i)
			wg.Go(func() { errs <- do(r.b.VolumeID(name), name) })
		}
		wg.Wait()
		for range n {
			r.ok(<-errs)
		}
		got := 0
		for call, k := range p.Counts() {
			switch call {
			case "patch logicalunits", "update logicalunits/status":
				got += k - before[call]
			}
		}
		t.Logf("%s: %v for %d, %.1f writes of the operator each", what, time.Since(began).Round(time.Millisecond), n, float64(got)/n)
		// Some are refused because the driver wrote at the same moment, on a busy machine nearly
		// one for each volume; allocated bytes and owners follow lazily.
		if got > (writes+2)*n {
			t.Errorf("%s: %d writes for %d volumes: %v", what, got, n, maps.Collect(maps.All(p.Counts())))
		}
	}
	// Finalizer and placement, the mark, the status.
	all("create", 3, func(_, name string) error { _, err := r.b.CreateVolume(r.ctx, r.wish(name)); return err })
	all("attach", 1, func(id, _ string) error { return r.publish(id, hostA) })
	all("detach", 1, func(id, _ string) error { return r.b.Unpublish(r.ctx, id, hostA) })
	// The status after spec.destroy, and the finalizer.
	all("delete", 2, func(id, _ string) error { return r.b.DeleteVolume(r.ctx, id) })
	if r.luns() != 0 {
		t.Errorf("%d LUNs are left", r.luns())
	}
}
