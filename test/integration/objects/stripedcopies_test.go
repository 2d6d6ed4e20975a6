package objects

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

// startReflinked is start on a filesystem that shares extents, which snapshots need.
func startReflinked(t *testing.T, limit time.Duration) *rig {
	t.Helper()
	return startIn(t, limit, reflinked.Dir(t, 1<<30))
}

// onDisk counts what the pair has.
func (r *rig) onDisk() (luns, snapshots int) {
	r.Helper()
	l, err := r.pair.Client(0).ListSnapshots(r.ctx, &targetv1.ListSnapshotsRequest{})
	r.ok(err)
	return r.luns(), len(l.Snapshots)
}

// copies is the life of a striped volume that is copied: a snapshot of it is restored, and it is
// cloned.
func (r *rig) stripedCopies(name string) []step {
	req, restored, clone := r.stripedWish(name), r.stripedWish(name+"-restored"), r.stripedWish(name+"-clone")
	snap := r.b.SnapshotID(name)
	restored.SourceSnapshot, clone.SourceVolume = snap, req.ID
	create := func(q backend.CreateVolume) func(context.Context, *objects.Backend) error {
		return func(ctx context.Context, b *objects.Backend) error {
			v, err := b.CreateVolume(ctx, q)
			if err == nil && (v.Layout != q.Layout || v.Size != q.Size) {
				err = fmt.Errorf("%+v", v)
			}
			return err
		}
	}
	remove := func(id string) func(context.Context, *objects.Backend) error {
		return func(ctx context.Context, b *objects.Backend) error { return b.DeleteVolume(ctx, id) }
	}
	between := func(luns, least, most int) func() error {
		return func() error {
			if l, s := r.onDisk(); l != luns || s < least || s > most {
				return fmt.Errorf("%d LUNs and %d snapshots, not %d and %d to %d", l, s, luns, least, most)
			}
			return nil
		}
	}
	has := func(luns, snapshots int) func() error { return between(luns, snapshots, snapshots) }
	return []step{
		{"create", create(req), has(legCount, 0), true},
		{"snapshot", func(ctx context.Context, b *objects.Backend) error {
			s, err := b.CreateSnapshot(ctx, snap, name, req.ID)
			if err == nil && (s.Size != req.Size || s.Group != "" || s.SourceVolume != req.ID || s.ID != snap || s.Created.IsZero()) {
				err = fmt.Errorf("%+v", s)
			}
			return err
		}, has(legCount, legCount), true},
		{"restore", create(restored), has(2*legCount, legCount), true},
		// What a clone was made from goes when an operator comes to it: this one may have ended
		// before, or between two of its parts.
		{"clone", create(clone), between(3*legCount, legCount, 2*legCount), true},
		{"delete the clone", remove(clone.ID), has(2*legCount, legCount), true},
		{"delete the source", remove(req.ID), has(legCount, legCount), true},
		{"delete the snapshot", func(ctx context.Context, b *objects.Backend) error { return b.DeleteSnapshot(ctx, snap) }, has(legCount, 0), true},
		{"delete what was restored", remove(restored.ID), has(0, 0), true},
	}
}

// A snapshot of a striped volume is one snapshot to the driver, of one instant of all legs. It is
// restored to as many LUNs, and so is a clone.
func TestCopiesOfStripedVolume(t *testing.T) {
	r := startReflinked(t, 4*time.Minute)
	r.operate()
	for _, s := range r.stripedCopies("one") {
		if err := errors.Join(s.do(r.ctx, r.b), s.then()); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	v, err := r.b.CreateVolume(r.ctx, r.stripedWish("two"))
	r.ok(err)
	one, err := r.b.CreateVolume(r.ctx, r.wish("beside"))
	r.ok(err)
	id := r.b.SnapshotID("kept")
	_, err = r.b.CreateSnapshot(r.ctx, id, "kept", v.ID)
	r.ok(err)
	attempts := map[uint64]bool{}
	l, err := r.pair.Client(0).ListSnapshots(r.ctx, &targetv1.ListSnapshotsRequest{})
	r.ok(err)
	for _, s := range l.Snapshots {
		attempts[s.Attempt] = true
	}
	if len(l.Snapshots) != legCount || len(attempts) != 1 || attempts[0] {
		t.Errorf("the parts are of the attempts %v of a cut: %v", attempts, l.Snapshots)
	}
	// The driver lists the snapshot, and none of its parts; nor is one used by itself.
	list, _, err := r.b.ListSnapshots(r.ctx, "", backend.Page{})
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Group != "" {
		t.Errorf("%+v, %v", list, err)
	}
	part := v1alpha1.LegName(id, 1)
	if _, err := r.b.GetSnapshot(r.ctx, part); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a part: %v", err)
	}
	if err := r.b.DeleteSnapshot(r.ctx, part); err != nil { // what does not exist is deleted
		t.Error(err)
	}
	if _, n := r.onDisk(); n != legCount {
		t.Errorf("%d snapshots", n)
	}
	other := r.wish("one LUN")
	other.Size, other.SourceSnapshot = legCount*32*mib, id
	if _, err := r.b.CreateVolume(r.ctx, other); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("restored to one LUN: %v", err)
	}
	// A group snapshot of it and of another volume has one snapshot of each.
	group := r.b.GroupSnapshotID("both")
	g, err := r.b.CreateGroupSnapshot(r.ctx, group, "both", []string{v.ID, one.ID})
	r.ok(err)
	var ids []string
	for _, s := range g.Snapshots {
		ids = append(ids, s.ID)
		if s.Group != group || s.SourceVolume == v.ID && s.Size != v.Size || s.SourceVolume == one.ID && s.Size != one.Size {
			t.Errorf("%+v", s)
		}
		if err := r.b.DeleteSnapshot(r.ctx, s.ID); !errors.Is(err, backend.ErrInGroup) {
			t.Errorf("deleted by itself: %v", err)
		}
	}
	if _, n := r.onDisk(); len(ids) != 2 || n != 2*legCount+1 {
		t.Errorf("%v; %d snapshots", ids, n)
	}
	r.ok(r.b.DeleteGroupSnapshot(r.ctx, group, ids))
	r.ok(r.b.DeleteSnapshot(r.ctx, id))
	if _, n := r.onDisk(); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
	var objs v1alpha1.LogicalUnitSnapshotList
	var groups v1alpha1.LogicalUnitGroupSnapshotList
	r.ok(r.c.List(r.ctx, &objs))
	r.ok(r.c.List(r.ctx, &groups))
	if len(objs.Items)+len(groups.Items) != 0 {
		t.Errorf("left: %v, %v", objs.Items, groups.Items)
	}
}

// A part of a snapshot whose object is gone is not taken again, at another instant.
func TestSnapshotOfStripedVolumeDoesNotInventParts(t *testing.T) {
	r := startReflinked(t, 3*time.Minute)
	r.operate()
	v, err := r.b.CreateVolume(r.ctx, r.stripedWish("lost"))
	r.ok(err)
	id := r.b.SnapshotID("lost")
	_, err = r.b.CreateSnapshot(r.ctx, id, "lost", v.ID)
	r.ok(err)
	part := &v1alpha1.LogicalUnitSnapshot{}
	key := client.ObjectKey{Name: v1alpha1.LegName(id, 0)}
	r.ok(r.c.Get(r.ctx, key, part))
	r.forget(part)
	r.untilSnapshot(id, v1alpha1.ReasonMissing)
	if err := r.c.Get(r.ctx, key, part); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the part is there again: %v", err)
	}
	r.ok(r.b.DeleteSnapshot(r.ctx, id)) // what is left can be deleted
}

// untilSnapshot waits for a reason of a snapshot that is not Ready.
func (r *rig) untilSnapshot(id, reason string) {
	r.Helper()
	r.ok(harness.Wait(r.ctx, "snapshot "+id+" says "+reason, func() (bool, string) {
		s := &v1alpha1.LogicalUnitSnapshot{}
		if err := r.c.Get(r.ctx, client.ObjectKey{Name: id}, s); err != nil {
			return false, err.Error()
		}
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
		return c != nil && c.Reason == reason, fmt.Sprintf("%+v", c)
	}))
}

// The operator dies at every twentieth of its calls to the API server. The packages of the
// reconcilers have tests in which it dies at each.
func TestCrashesWithCopiesOfStripedVolumes(t *testing.T) {
	r := startReflinked(t, 10*time.Minute)
	p, err := flakyapi.New(r.cfg)
	r.ok(err)
	defer p.Close()
	c := &sticky{crasher: apiCrash{p}}
	run := r.operated(c, func() (*operator.Operator, error) { return operator.Start(r.ctx, p.Config(), r.pair, nil) })
	r.someCrashes(c, r.stripedCopies, run, 20)
}
