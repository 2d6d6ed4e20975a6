package objects

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// A volume through its whole life.
func TestVolumeThroughItsWholeLife(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	is := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	v := r.create("pvc-1")
	if again := r.create("pvc-1"); again.ID != v.ID || again.Size != 64*mib || again.Pairs[0] == "" {
		t.Fatalf("%+v", again)
	}
	req := r.wish("pvc-1")
	req.Size *= 2
	_, err := r.b.CreateVolume(r.ctx, req)
	is(err, backend.ErrExists)

	// The disks have everything that is needed to make the object again.
	l := r.lun(v.ID)
	for k, want := range map[string]string{v1alpha1.DiskLabelName: "pvc-1", v1alpha1.DiskLabelPV: "pvc-1", v1alpha1.DiskLabelPVC: "data", v1alpha1.DiskLabelNamespace: "team",
		v1alpha1.DiskLabelFSType: "xfs", v1alpha1.DiskLabelAccess: "single", v1alpha1.LabelCluster: "demo", "gemel.storage/logical-unit": v.ID} {
		if l.Labels[k] != want {
			t.Errorf("label %s is %q", k, l.Labels[k])
		}
	}
	lu := r.unit(v.ID)
	if lu.Status.WWID != l.Wwid || lu.Spec.Placement.UUID != l.Uuid || lu.Status.Owner != l.Owner || !lu.Status.InSync ||
		!meta.IsStatusConditionTrue(lu.Status.Conditions, "Ready") || !meta.IsStatusConditionTrue(lu.Status.Conditions, "Published") {
		t.Fatalf("%+v", lu.Status)
	}

	// Publish, again, otherwise, elsewhere.
	a, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: hostA, Exclusive: true})
	r.ok(err)
	if len(a.Portals) != 2 || a.TargetIQN != r.pair.IQN() || a.WWID != l.Wwid || a.Generation == 0 {
		t.Fatalf("%+v", a)
	}
	if again, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: hostA, Exclusive: true}); err != nil || !again.Same(a) {
		t.Fatal(again, err)
	}
	_, err = r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: hostA, ReadOnly: true})
	is(err, backend.ErrExists)
	is(r.publish(v.ID, hostB), backend.ErrInUse)
	_, err = r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: "not a name"})
	if !errors.Is(err, backend.ErrInvalid) && !errors.Is(err, backend.ErrInUse) {
		t.Fatal(err)
	}
	is(r.b.DeleteVolume(r.ctx, v.ID), backend.ErrInUse)

	// Move to another host: fenced on return, another number.
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostA))
	if h := r.mapped(v.ID); len(h) != 0 {
		t.Fatalf("unpublished, and %v is mapped", h)
	}
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostA))
	is(r.publish(v.ID, "not a name"), backend.ErrInvalid)
	r.ok(r.publish(v.ID, hostB))
	if h := r.mapped(v.ID); !slices.Equal(h, []string{hostB}) {
		t.Fatal(h)
	}

	// Grow, while published.
	v, err = r.b.ExpandVolume(r.ctx, v.ID, 96*mib)
	r.ok(err)
	if v.Size != 96*mib || r.lun(v.ID).SizeBytes != 96*mib {
		t.Fatalf("%+v", v)
	}
	r.ok(r.b.Unpublish(r.ctx, v.ID, ""))

	// A snapshot that outlives its source, what is restored from it, and a clone.
	s, err := r.b.CreateSnapshot(r.ctx, r.b.SnapshotID("s"), "s", v.ID)
	r.ok(err)
	if again, err := r.b.CreateSnapshot(r.ctx, s.ID, "s", v.ID); err != nil || !again.Created.Equal(s.Created) || again.Size != 96*mib || time.Since(s.Created) > time.Minute {
		t.Fatal(again, err)
	}
	small := r.wish("small")
	small.SourceSnapshot = s.ID
	_, err = r.b.CreateVolume(r.ctx, small)
	is(err, backend.ErrInvalid)
	restore, clone := r.wish("restored"), r.wish("clone")
	restore.Size, restore.SourceSnapshot = 96*mib, s.ID
	clone.Size, clone.SourceVolume = 96*mib, v.ID
	for _, req := range []backend.CreateVolume{clone, restore} {
		c, err := r.b.CreateVolume(r.ctx, req)
		r.ok(err)
		if c.SourceSnapshot != req.SourceSnapshot || c.SourceVolume != req.SourceVolume {
			t.Fatalf("%+v", c)
		}
		if req.SourceVolume != "" {
			r.ok(r.b.DeleteVolume(r.ctx, v.ID))
		}
	}
	if l := r.lun(restore.ID); l.SourceSnapshotUuid == "" {
		t.Fatal(l)
	}
	_, err = r.b.CreateSnapshot(r.ctx, r.b.SnapshotID("late"), "late", v.ID)
	is(err, backend.ErrNotFound)
	if list, _, err := r.b.ListSnapshots(r.ctx, v.ID, backend.Page{}); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}

	// Delete.
	for range 2 {
		for _, id := range []string{v.ID, restore.ID, clone.ID} {
			r.ok(r.b.DeleteVolume(r.ctx, id))
		}
		r.ok(r.b.DeleteSnapshot(r.ctx, s.ID))
	}
	if r.luns() != 0 || r.snapshots() != 0 {
		t.Fatalf("%d LUNs and %d snapshots are left", r.luns(), r.snapshots())
	}
	_, err = r.b.GetVolume(r.ctx, v.ID)
	is(err, backend.ErrNotFound)
	for _, id := range []string{"No/thing", r.b.VolumeID("nothing")} {
		_, err = r.b.GetVolume(r.ctx, id)
		is(err, backend.ErrNotFound)
		r.ok(r.b.DeleteVolume(r.ctx, id))
		r.ok(r.b.DeleteSnapshot(r.ctx, id))
		r.ok(r.b.Unpublish(r.ctx, id, ""))
		is(r.publish(id, hostA), backend.ErrNotFound)
	}
	// Under the same name comes another LUN.
	if v := r.create("pvc-1"); r.lun(v.ID).Wwid == l.Wwid {
		t.Error("the WWID of a deleted LUN again")
	}
}

// A volume that fits on no pair is refused with a reason, and leaves nothing behind.
func TestNoRoom(t *testing.T) {
	r := start(t, time.Minute)
	r.operate()
	req := r.wish("huge")
	req.Size = 200 << 40
	_, err := r.b.CreateVolume(r.ctx, req)
	if !errors.Is(err, backend.ErrExhausted) || !strings.Contains(err.Error(), "p0: ") {
		t.Fatal(err)
	}
	req.Size, req.Cluster = mib, "elsewhere"
	req.ID, req.Name = r.b.VolumeID("elsewhere"), "elsewhere"
	if _, err := r.b.CreateVolume(r.ctx, req); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "StorageCluster elsewhere does not exist") {
		t.Fatal(err)
	}
	r.ok(r.b.DeleteVolume(r.ctx, req.ID)) // waits until it is gone
	free, err := r.b.Capacity(r.ctx, "demo", "", nil)
	r.ok(err)
	if none, err := r.b.Capacity(r.ctx, "elsewhere", "", nil); err != nil || none != 0 || free == 0 {
		t.Fatal(free, none, err)
	}
}

// A deletion without spec.destroy keeps the data and says so; the volume still works, and
// DeleteVolume deletes it.
func TestDeletionKeepsData(t *testing.T) {
	r := start(t, time.Minute)
	r.operate()
	v := r.create("kept")
	r.ok(r.publish(v.ID, hostA))
	r.ok(r.c.Delete(r.ctx, r.unit(v.ID)))
	r.until(v.ID, "it says that the data is kept", func(lu *v1alpha1.LogicalUnit) bool {
		c := meta.FindStatusCondition(lu.Status.Conditions, "Ready")
		return c.Reason == v1alpha1.ReasonDataKept && c.Status == "True" && strings.Contains(c.Message, "spec.destroy")
	})
	if h := r.mapped(v.ID); len(h) != 1 {
		t.Fatal(h)
	}
	_, err := r.b.ExpandVolume(r.ctx, v.ID, 128*mib)
	r.ok(err)
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostA))
	r.ok(r.publish(v.ID, hostB))
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostB))
	if r.lun(v.ID) == nil {
		t.Fatal("the data is gone")
	}
	r.ok(r.b.DeleteVolume(r.ctx, v.ID))
	if r.lun(v.ID) != nil {
		t.Fatal("the data is still there")
	}
	// To forget the object but keep the data is an administrator's choice.
	v = r.create("forgotten")
	r.forget(r.unit(v.ID))
	if r.lun(v.ID) == nil {
		t.Fatal("the data is gone")
	}
	// A new volume of that name does not take the old data over.
	if _, err := r.b.CreateVolume(r.ctx, r.wish("forgotten")); !errors.Is(err, backend.ErrInvalid) {
		t.Fatal(err)
	}
}

// A LUN that was created and is missing is not created again.
func TestMissingLUNIsNotMadeAgain(t *testing.T) {
	r := start(t, time.Minute)
	r.operate()
	v := r.create("lost")
	_, err := r.pair.Client(0).DeleteLUN(r.ctx, &targetv1.DeleteLUNRequest{Uuid: r.unit(v.ID).Spec.Placement.UUID})
	r.ok(err)
	r.until(v.ID, "it says that the LUN is missing", func(lu *v1alpha1.LogicalUnit) bool {
		c := meta.FindStatusCondition(lu.Status.Conditions, "Ready")
		return c.Status == "False" && c.Reason == v1alpha1.ReasonMissing
	})
	if err := r.publish(v.ID, hostA); !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	if r.luns() != 0 {
		t.Fatal("made again")
	}
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostA))
	r.ok(r.b.DeleteVolume(r.ctx, v.ID))
}

// The pair's list of hosts decides, not the status: one that is in neither spec nor status is
// fenced.
func TestLostStatus(t *testing.T) {
	r := start(t, time.Minute)
	v := func() backend.Volume {
		r.operate()
		return r.create("v")
	}()
	r.ok(r.publish(v.ID, hostA))
	lu := r.unit(v.ID)
	lu.Status = v1alpha1.LogicalUnitStatus{}
	r.ok(r.c.Status().Update(r.ctx, lu))
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostA))
	if h := r.mapped(v.ID); len(h) != 0 {
		t.Fatalf("%v is mapped", h)
	}
	// A host that was mapped without the operator.
	_, err := r.pair.Client(0).MapHost(r.ctx, &targetv1.MapHostRequest{LunUuid: r.unit(v.ID).Spec.Placement.UUID, HostIqn: hostB})
	r.ok(err)
	r.ok(r.edit(v.ID, func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "b" }))
	r.until(v.ID, "the stranger is out and the LUN has its preferred node", func(lu *v1alpha1.LogicalUnit) bool {
		return len(r.mapped(v.ID)) == 0 && lu.Status.PreferredNode == "b" && r.lun(v.ID).PreferredNode == "b"
	})
}

// A mapping that the operator ended, and died before it could say so, is not given out again.
func TestOldMapping(t *testing.T) {
	r := start(t, time.Minute)
	o, err := operator.Start(r.ctx, r.cfg, r.pair, nil)
	r.ok(err)
	v := r.create("v")
	old, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: hostA, Exclusive: true})
	r.ok(err)
	r.ok(o.Stop())
	short, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	if err := r.b.Unpublish(short, v.ID, hostA); !errors.Is(err, backend.ErrTimeout) {
		t.Fatal(err)
	}
	_, err = r.pair.Client(0).UnmapHost(r.ctx, &targetv1.UnmapHostRequest{LunUuid: r.unit(v.ID).Spec.Placement.UUID, HostIqn: hostA})
	r.ok(err)
	var now attach.Attachment
	done := make(chan error, 1)
	go func() {
		var err error
		now, err = r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: hostA, Exclusive: true})
		done <- err
	}()
	r.ok(harness.Wait(r.ctx, "the wish is written", func() (bool, string) { return len(r.unit(v.ID).Spec.Hosts) == 1, "" }))
	r.operate()
	r.ok(<-done)
	m := r.lun(v.ID).Mappings
	if len(m) != 1 || m[0].Generation != now.Generation || now.Generation == old.Generation {
		t.Fatalf("published as %+v, mapped as %v", now, m)
	}
}

// Of two controllers that publish to two hosts one wins, every time.
func TestTwoControllers(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	v := r.create("contended")
	for range 10 {
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, h := range []string{hostA, hostB} {
			wg.Go(func() { errs[i] = r.publish(v.ID, h) })
		}
		wg.Wait()
		won, lost := errs[0], errs[1]
		if won != nil {
			won, lost = lost, won
		}
		if won != nil || !errors.Is(lost, backend.ErrInUse) {
			t.Fatal(errs)
		}
		if h := r.mapped(v.ID); len(h) != 1 {
			t.Fatal(h)
		}
		// Publish to the other one while this one is unpublished and, now and then, all at once.
		for i, h := range []string{hostA, hostB} {
			wg.Go(func() { errs[i] = r.b.Unpublish(r.ctx, v.ID, h) })
		}
		wg.Wait()
		r.ok(errors.Join(errs...))
	}
	// Creation and deletion by two at once.
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := r.b.CreateVolume(r.ctx, r.wish("twice")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range 2 {
		wg.Go(func() {
			if err := r.b.DeleteVolume(r.ctx, r.b.VolumeID("twice")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := r.luns(); n != 1 {
		t.Errorf("%d LUNs", n)
	}
}

// Without an operator a call ends with its context, and says what it waited for.
func TestNobodyWorks(t *testing.T) {
	r := start(t, time.Minute)
	ctx, cancel := context.WithTimeout(r.ctx, 500*time.Millisecond)
	defer cancel()
	_, err := r.b.CreateVolume(ctx, r.wish("v"))
	if !errors.Is(err, backend.ErrTimeout) || !strings.Contains(err.Error(), "operator") {
		t.Fatal(err)
	}
	// One that comes later finds the wish.
	r.operate()
	r.create("v")
	var list v1alpha1.LogicalUnitList
	r.ok(r.c.List(r.ctx, &list, &client.ListOptions{}))
	if len(list.Items) != 1 {
		t.Fatal(list.Items)
	}
}

// A fail-over of the pair is not seen in the objects but in the owner, lazily; without any node
// calls wait.
func TestNodesGo(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	v := r.create("v")
	r.ok(r.pair.Kill(0))
	r.ok(r.publish(v.ID, hostA))
	r.until(v.ID, "b owns it", func(lu *v1alpha1.LogicalUnit) bool { return lu.Status.Owner == "b" })
	r.ok(r.pair.Kill(1))
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	if err := r.b.Unpublish(ctx, v.ID, hostA); !errors.Is(err, backend.ErrTimeout) || !strings.Contains(err.Error(), "pair p0") {
		t.Fatal(err)
	}
	if len(r.unit(v.ID).Status.Hosts) != 1 {
		t.Fatal("the host left the status and was not fenced")
	}
	r.ok(r.pair.StartNode(0))
	r.ok(r.pair.StartNode(1))
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostA))
	r.ok(r.pair.WaitInSync(r.ctx))
	if h := r.mapped(v.ID); len(h) != 0 {
		t.Fatal(h)
	}
}
