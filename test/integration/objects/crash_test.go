package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// step is one operation of the driver, and what has to be true when it has returned.
type step struct {
	name string
	do   func(ctx context.Context, b *objects.Backend) error
	then func() error
	// alone: then looks at all that the pair holds.
	alone bool
}

// life is the steps of a volume; each step may be repeated. Every crash gets its own volume.
func (r *rig) life(name string) []step {
	req := r.wish(name)
	id, snap := req.ID, r.b.SnapshotID(name)
	clone := r.wish(name + "-restored")
	clone.Size, clone.SourceSnapshot = 96*mib, snap
	publish := func(host string) func(context.Context, *objects.Backend) error {
		return func(ctx context.Context, b *objects.Backend) error {
			a, err := b.Publish(ctx, backend.Publish{VolumeID: id, HostIQN: host, Exclusive: true})
			if err != nil {
				return err
			}
			for _, m := range r.lun(id).GetMappings() {
				if m.HostIqn == host && (m.Lun != uint32(a.LUN) || m.Generation != a.Generation) {
					return fmt.Errorf("published as %+v, mapped as %+v", a, m)
				}
			}
			return nil
		}
	}
	hosts := func(want ...string) func() error {
		return func() error {
			if got := r.mapped(id); !slices.Equal(got, want) {
				return fmt.Errorf("%v is mapped, not %v", got, want)
			}
			return nil
		}
	}
	// luns and snaps are how many the pair holds of this life.
	count := func(luns, snaps int) func() error {
		return func() error {
			if l, s := r.luns(), r.snapshots(); l != luns || s != snaps {
				return fmt.Errorf("%d LUNs and %d snapshots, not %d and %d", l, s, luns, snaps)
			}
			return nil
		}
	}
	return []step{
		{"create", func(ctx context.Context, b *objects.Backend) error { _, err := b.CreateVolume(ctx, req); return err }, count(1, 0), true},
		{"attach", publish(hostA), hosts(hostA), false},
		{"detach", func(ctx context.Context, b *objects.Backend) error { return b.Unpublish(ctx, id, hostA) }, hosts(), false},
		{"move", publish(hostB), hosts(hostB), false},
		{"expand", func(ctx context.Context, b *objects.Backend) error {
			_, err := b.ExpandVolume(ctx, id, 96*mib)
			return err
		}, func() error {
			if n := r.lun(id).SizeBytes; n != 96*mib {
				return fmt.Errorf("%d bytes", n)
			}
			return nil
		}, false},
		{"modify", func(ctx context.Context, b *objects.Backend) error {
			_, err := b.ModifyVolume(ctx, id, backend.Mutable{PreferredNode: "b", WriteCache: v1alpha1.WriteThrough})
			return err
		}, func() error {
			if l := r.lun(id); l.WriteCache.Word() != v1alpha1.WriteThrough || l.PreferredNode != "b" {
				return fmt.Errorf("it is %v", l)
			}
			return nil
		}, false},
		{"snapshot", func(ctx context.Context, b *objects.Backend) error {
			_, err := b.CreateSnapshot(ctx, snap, name, id)
			return err
		}, count(1, 1), true},
		{"restore", func(ctx context.Context, b *objects.Backend) error { _, err := b.CreateVolume(ctx, clone); return err }, count(2, 1), true},
		{"detach all", func(ctx context.Context, b *objects.Backend) error { return b.Unpublish(ctx, id, "") }, hosts(), false},
		{"delete", func(ctx context.Context, b *objects.Backend) error { return b.DeleteVolume(ctx, id) }, count(1, 1), true},
		{"delete snapshot", func(ctx context.Context, b *objects.Backend) error { return b.DeleteSnapshot(ctx, snap) }, count(1, 0), true},
		{"delete restored", func(ctx context.Context, b *objects.Backend) error { return b.DeleteVolume(ctx, clone.ID) }, count(0, 0), true},
	}
}

// crasher makes its process die at the n-th call from now that changes something, before or after
// it landed.
type crasher interface {
	arm(n int, landed bool)
	// crashed reports whether the process died, and heal lets calls through again.
	crashed() bool
	heal()
}

type apiCrash struct{ *flakyapi.Proxy }

func (a apiCrash) arm(n int, landed bool) { a.CrashAt(n, landed, nil) }
func (a apiCrash) crashed() bool          { return a.Crashed() }
func (a apiCrash) heal()                  { a.Reset() }

// survived heals after a step, which ended with err in spite of a crash at its n-th call, and
// checks what it was for. It tells whether it came to the crash.
func (r *rig) survived(c crasher, s step, n int, landed bool, err error) (crashed bool) {
	r.Helper()
	crashed = c.crashed()
	c.heal()
	if err == nil {
		err = s.then()
	}
	if err != nil {
		r.Fatalf("%s, crash at call %d (landed %v, came to it: %v): %v", s.name, n, landed, crashed, err)
	}
	return crashed
}

// everyCrash plays life after life: in each of them, each step is crashed at its n-th call, until
// no step has as many.
func (r *rig) everyCrash(c crasher, life func(name string) []step, run func(step) error) {
	r.Helper()
	r.someCrashes(c, life, run, 1)
}

// someCrashes is everyCrash for some calls only: the first, and each that is stride after another.
func (r *rig) someCrashes(c crasher, life func(name string) []step, run func(step) error, stride int) {
	r.Helper()
	total := 0
	for _, landed := range []bool{false, true} {
		for n := 1; ; n += stride {
			hit := 0
			for _, s := range life(fmt.Sprintf("v-%v-%d", landed, n)) {
				c.arm(n, landed)
				began := time.Now()
				err := run(s)
				if r.survived(c, s, n, landed, err) {
					hit++
				}
				if took := time.Since(began); took > 10*time.Second {
					r.Logf("%s, crash at call %d (landed %v): %v", s.name, n, landed, took)
				}
			}
			total += hit
			if hit == 0 {
				break
			}
			if n > 400 { // the clone of a striped volume makes about 65
				r.Fatal("there is no end of calls")
			}
		}
	}
	r.Logf("%d crashes", total)
	if total < 20 {
		r.Errorf("only %d crashes", total)
	}
}

// operated runs a step while the operator dies and is started again.
func (r *rig) operated(c crasher, launch func() (*operator.Operator, error)) func(step) error {
	return func(s step) error {
		o, err := launch()
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(r.ctx, 45*time.Second)
		defer cancel()
		go func() { done <- s.do(ctx, r.b) }()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case err := <-done:
				return errors.Join(err, o.Stop())
			case <-tick.C:
				if !c.crashed() {
					continue
				}
				_ = o.Stop() // it has ended, with or without an error
				c.heal()
				if o, err = launch(); err != nil {
					return err
				}
				err = <-done
				return errors.Join(err, o.Stop())
			}
		}
	}
}

// The operator dies at any of its calls to the API server.
func TestOperatorCrashesAtAPI(t *testing.T) {
	r := start(t, 8*time.Minute)
	p, err := flakyapi.New(r.cfg)
	r.ok(err)
	defer p.Close()
	c := &sticky{crasher: apiCrash{p}}
	r.everyCrash(c, r.life, r.operated(c, func() (*operator.Operator, error) { return operator.Start(r.ctx, p.Config(), r.pair, nil) }))
}

// The operator dies at any of its calls to the pair.
func TestOperatorCrashesAtPair(t *testing.T) {
	r := start(t, 8*time.Minute)
	f := &faultyPairs{}
	c := &sticky{crasher: f}
	r.everyCrash(c, r.life, r.operated(c, func() (*operator.Operator, error) {
		return operator.Start(r.ctx, r.cfg, r.pair, func(p pairconn.Pairs) pairconn.Pairs { f.Pairs = p; return f })
	}))
}

// sticky remembers a crash that was healed, until the next is armed.
type sticky struct {
	crasher
	was atomic.Bool
}

func (s *sticky) arm(n int, landed bool) { s.was.Store(false); s.crasher.arm(n, landed) }
func (s *sticky) crashed() bool          { return s.was.Load() || s.crasher.crashed() }
func (s *sticky) heal() {
	s.was.Store(s.crashed())
	s.crasher.heal()
}

// The driver dies at any of its calls to the API server, and another one is asked again.
func TestDriverCrashes(t *testing.T) {
	r := start(t, 8*time.Minute)
	r.operate()
	p, err := flakyapi.New(r.cfg)
	r.ok(err)
	defer p.Close()
	c := &sticky{crasher: apiCrash{p}}
	r.everyCrash(c, r.life, func(s step) error {
		k, err := operator.Client(p.Config())
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(r.ctx, 45*time.Second)
		defer cancel()
		first := make(chan error, 1)
		under, die := context.WithCancel(ctx)
		defer die()
		go func() { first <- s.do(under, objects.New(k)) }()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case err := <-first:
				if !c.crashed() {
					return err
				}
			case <-tick.C:
				if !c.crashed() {
					continue
				}
				die()
				<-first
			}
			c.heal()
			return s.do(ctx, r.b)
		}
	})
}

// After each life no failed object is left.
func TestNothingIsLeftFailed(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	for _, s := range r.life("plain") {
		r.ok(s.do(r.ctx, r.b))
		r.ok(s.then())
		var list v1alpha1.LogicalUnitList
		r.ok(r.c.List(r.ctx, &list))
		for _, lu := range list.Items {
			if lu.DeletionTimestamp.IsZero() && !meta.IsStatusConditionTrue(lu.Status.Conditions, "Ready") {
				t.Errorf("after %s: %+v", s.name, lu.Status)
			}
		}
	}
}
