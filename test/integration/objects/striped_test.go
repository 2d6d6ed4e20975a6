package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/internal/stripe"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

const legCount = 2

// stripedWish is a volume over several LUNs.
func (r *rig) stripedWish(name string) backend.CreateVolume {
	q := r.wish(name)
	q.Size, q.Layout = legCount*32*mib, stripe.Default(legCount)
	return q
}

// legs asks the pair for the LUNs of a striped volume.
func (r *rig) legsOf(id string) (sizes []uint64, homes []string, hosts [][]string) {
	r.Helper()
	for i := range legCount {
		l := r.lun(v1alpha1.LegName(id, i))
		sizes, homes, hosts = append(sizes, l.GetSizeBytes()), append(homes, l.GetPreferredNode()), append(hosts, r.mapped(v1alpha1.LegName(id, i)))
	}
	return sizes, homes, hosts
}

// allMapped reports what of a striped volume is mapped otherwise.
func (r *rig) allMapped(id string, want ...string) error {
	r.Helper()
	for i := range legCount {
		if got := r.mapped(v1alpha1.LegName(id, i)); !slices.Equal(got, want) {
			return fmt.Errorf("leg %d is mapped to %v, not %v", i, got, want)
		}
	}
	return nil
}

// stripedLife is the steps of a striped volume.
func (r *rig) stripedLife(name string) []step {
	req := r.stripedWish(name)
	id := req.ID
	publish := func(host string) func(context.Context, *objects.Backend) error {
		return func(ctx context.Context, b *objects.Backend) error {
			a, err := b.Publish(ctx, backend.Publish{VolumeID: id, HostIQN: host, Exclusive: true})
			if err != nil {
				return err
			}
			return r.reaches(id, a)
		}
	}
	hosts := func(want ...string) func() error { return func() error { return r.allMapped(id, want...) } }
	count := func(luns int) func() error {
		return func() error {
			if l := r.luns(); l != luns {
				return fmt.Errorf("%d LUNs, not %d", l, luns)
			}
			return nil
		}
	}
	return []step{
		{"create", func(ctx context.Context, b *objects.Backend) error { _, err := b.CreateVolume(ctx, req); return err }, count(legCount), true},
		{"attach", publish(hostA), hosts(hostA), false},
		{"detach", func(ctx context.Context, b *objects.Backend) error { return b.Unpublish(ctx, id, hostA) }, hosts(), false},
		{"move", publish(hostB), hosts(hostB), false},
		{"expand", func(ctx context.Context, b *objects.Backend) error {
			v, err := b.ExpandVolume(ctx, id, legCount*48*mib)
			if err == nil && v.Size != legCount*48*mib {
				err = fmt.Errorf("%d bytes", v.Size)
			}
			return err
		}, func() error {
			if sizes, _, _ := r.legsOf(id); !slices.Equal(sizes, []uint64{48 * mib, 48 * mib}) {
				return fmt.Errorf("legs of %v bytes", sizes)
			}
			return nil
		}, false},
		{"modify", func(ctx context.Context, b *objects.Backend) error {
			_, err := b.ModifyVolume(ctx, id, backend.Mutable{WriteCache: v1alpha1.WriteThrough})
			return err
		}, func() error {
			for i := range legCount {
				if w := r.lun(v1alpha1.LegName(id, i)).WriteCache.Word(); w != v1alpha1.WriteThrough {
					return fmt.Errorf("leg %d is %s", i, w)
				}
			}
			return nil
		}, false},
		{"detach all", func(ctx context.Context, b *objects.Backend) error { return b.Unpublish(ctx, id, "") }, hosts(), false},
		{"delete", func(ctx context.Context, b *objects.Backend) error { return b.DeleteVolume(ctx, id) }, count(0), true},
	}
}

// reaches compares a publish with the mappings of the pair, leg by leg.
func (r *rig) reaches(id string, a attach.Attachment) error {
	if len(a.Legs) != legCount || a.Stripe != stripe.Default(legCount).Size || a.WWID != "" {
		return fmt.Errorf("published as %+v", a)
	}
	for i, l := range a.Legs {
		lun := r.lun(v1alpha1.LegName(id, i))
		for _, m := range lun.GetMappings() {
			if m.HostIqn == a.HostIQN && (m.Lun != uint32(l.LUN) || lun.Wwid != l.WWID || m.Generation > a.Generation) {
				return fmt.Errorf("leg %d is published as %+v, mapped as %+v", i, l, m)
			}
		}
	}
	return nil
}

// A striped volume is one volume to the driver: LUNs whose homes alternate, which are
// published, fenced, grown and deleted together. A leg is no volume, and a copy has as many LUNs.
func TestStripedVolume(t *testing.T) {
	r := start(t, 3*time.Minute)
	r.operate()
	for _, s := range r.stripedLife("one") {
		if err := errors.Join(s.do(r.ctx, r.b), s.then()); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	v, err := r.b.CreateVolume(r.ctx, r.stripedWish("two"))
	r.ok(err)
	if v.Layout != stripe.Default(legCount) || v.Size != legCount*32*mib {
		t.Errorf("%+v", v)
	}
	if _, homes, _ := r.legsOf(v.ID); !slices.Equal(homes, []string{"a", "b"}) && !slices.Equal(homes, []string{"b", "a"}) {
		t.Errorf("homes %v", homes)
	}
	list, _, err := r.b.ListVolumes(r.ctx, backend.Page{})
	if err != nil || len(list) != 1 || list[0].ID != v.ID {
		t.Errorf("listed: %+v, %v", list, err)
	}
	leg := v1alpha1.LegName(v.ID, 1)
	if err := r.publish(leg, hostA); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a leg is published: %v", err)
	}
	other := r.stripedWish("two")
	other.Layout = stripe.Default(3)
	if _, err := r.b.CreateVolume(r.ctx, other); !errors.Is(err, backend.ErrExists) {
		t.Errorf("another layout: %v", err)
	}
	clone := r.stripedWish("clone")
	clone.Layout, clone.SourceVolume = stripe.Layout{}, v.ID
	if _, err := r.b.CreateVolume(r.ctx, clone); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a clone with one LUN: %v", err)
	}
	// What an administrator changes at a leg is what the volume says, a moment later.
	r.ok(r.edit(leg, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Hosts = []v1alpha1.HostAccess{{IQN: hostB}} }))
	r.until(leg, "the leg has the hosts of its volume", func(lu *v1alpha1.LogicalUnit) bool {
		return len(lu.Spec.Hosts) == 0 && len(lu.Status.Hosts) == 0 && lu.Status.ObservedGeneration == lu.Generation
	})
	r.until(v.ID, "no host is listed", func(lu *v1alpha1.LogicalUnit) bool { return len(lu.Status.Hosts) == 0 })
	r.ok(r.b.DeleteVolume(r.ctx, v.ID))
	if n := r.luns(); n != 0 {
		t.Errorf("%d LUNs are left", n)
	}
}

// A leg that has been deleted is not made again with nothing in it, and a volume does not take over
// the legs of an earlier one of its name.
func TestStripedVolumeDoesNotInventLegs(t *testing.T) {
	r := start(t, 3*time.Minute)
	r.operate()
	v, err := r.b.CreateVolume(r.ctx, r.stripedWish("lost"))
	r.ok(err)
	leg := v1alpha1.LegName(v.ID, 1)
	r.forget(r.unit(leg))
	says := func(reason string) func(lu *v1alpha1.LogicalUnit) bool {
		return func(lu *v1alpha1.LogicalUnit) bool {
			return slices.ContainsFunc(lu.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionReady && c.Reason == reason })
		}
	}
	r.until(v.ID, "the volume misses its leg", says(v1alpha1.ReasonMissing))
	if err := r.c.Get(r.ctx, client.ObjectKey{Name: leg}, &v1alpha1.LogicalUnit{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the leg is there again: %v", err)
	}
	// The object of the volume goes, its legs stay, and another volume gets the name.
	r.forget(r.unit(v.ID))
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	if _, err := r.b.CreateVolume(ctx, r.stripedWish("lost")); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a volume with the legs of another one: %v", err)
	}
}

// The operator dies at any of its calls to the API server, or to the pair. A volume is attached
// once here: that is as for one LUN.
func TestCrashesWithStripedVolumes(t *testing.T) {
	once := func(r *rig) func(string) []step {
		return func(name string) []step {
			return slices.DeleteFunc(r.stripedLife(name), func(s step) bool { return s.name == "detach" || s.name == "move" })
		}
	}
	t.Run("operator at the API server", func(t *testing.T) {
		r := start(t, 8*time.Minute)
		p, err := flakyapi.New(r.cfg)
		r.ok(err)
		defer p.Close()
		c := &sticky{crasher: apiCrash{p}}
		r.everyCrash(c, once(r), r.operated(c, func() (*operator.Operator, error) { return operator.Start(r.ctx, p.Config(), r.pair, nil) }))
	})
	t.Run("operator at the pair", func(t *testing.T) {
		r := start(t, 8*time.Minute)
		f := &faultyPairs{}
		c := &sticky{crasher: f}
		r.everyCrash(c, once(r), r.operated(c, func() (*operator.Operator, error) {
			return operator.Start(r.ctx, r.cfg, r.pair, func(p pairconn.Pairs) pairconn.Pairs { f.Pairs = p; return f })
		}))
	})
}
