package objects

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

// grouped is a rig of two pairs, with the rights that the operator has in a cluster.
type grouped struct {
	*rig
	pairs [2]*harness.Pair
	stop  func()
	run   func()
}

func startGrouped(t *testing.T) *grouped {
	t.Helper()
	dir := reflinked.Dir(t, 1<<30)
	g := &grouped{rig: startIn(t, 4*time.Minute, filepath.Join(dir, "p0"))}
	p1, err := harness.New(harness.Options{Dir: filepath.Join(dir, "p1"), Binary: g.pair.Binary, Name: "p1", Args: []string{"--lease", "2s"}})
	g.ok(err)
	g.pairs = [2]*harness.Pair{g.pair, p1}
	t.Cleanup(func() {
		if err := p1.Close(); err != nil {
			t.Errorf("stop of the second pair: %v", err)
		}
	})
	g.ok(p1.Start(g.ctx))
	g.ok(operator.AddPair(g.ctx, g.c, p1))
	cfg := envtest.Operator(t, g.cfg, envtest.Namespace(t, g.cfg), "../../../config/rbac")
	var o *operator.Operator
	g.stop = func() {
		if o == nil {
			return
		}
		if err := o.Stop(); err != nil {
			t.Errorf("stop of the operator: %v", err)
		}
		o = nil
	}
	g.run = func() {
		wrap, err := operator.Several(g.c, p1)
		g.ok(err)
		o, err = operator.Start(g.ctx, cfg, g.pair, wrap)
		g.ok(err)
	}
	t.Cleanup(func() { g.stop() })
	g.run()
	return g
}

// sources are volumes of both pairs, with both owners in each.
func (g *grouped) sources() (ids []string) {
	g.Helper()
	seen := map[string]bool{}
	for i := 0; len(seen) < 4; i++ {
		if i == 16 {
			g.Fatalf("16 volumes are on %v only", seen)
		}
		req := g.wish(fmt.Sprintf("pvc-%d", i))
		req.PreferredNode = harness.Names[i/2%2]
		v, err := g.b.CreateVolume(g.ctx, req)
		g.ok(err)
		at := v.Pairs[0] + "/" + g.unit(v.ID).Status.Owner
		if seen[at] {
			g.ok(g.b.DeleteVolume(g.ctx, v.ID))
			continue
		}
		seen[at] = true
		ids = append(ids, v.ID)
	}
	return ids
}

// on is what a pair has of a group: nothing, if it has not heard of it.
func (g *grouped) on(p *harness.Pair, id string) *targetv1.GroupSnapshot {
	g.Helper()
	var o v1alpha1.LogicalUnitGroupSnapshot
	g.ok(g.c.Get(g.ctx, client.ObjectKey{Name: id}, &o))
	r, err := p.Client(0).GetGroupSnapshot(g.ctx, &targetv1.GetGroupSnapshotRequest{GroupUuid: string(o.UID)})
	if status.Code(err) == codes.NotFound {
		return &targetv1.GroupSnapshot{}
	}
	g.ok(err)
	return r
}

// nothingLeft fails unless the objects and the snapshots of a group are gone, and the pairs refuse
// another attempt.
func (g *grouped) nothingLeft(uuid string, attempt uint64) {
	g.Helper()
	var groups v1alpha1.LogicalUnitGroupSnapshotList
	var snaps v1alpha1.LogicalUnitSnapshotList
	g.ok(g.c.List(g.ctx, &groups))
	g.ok(g.c.List(g.ctx, &snaps))
	if len(groups.Items)+len(snaps.Items) != 0 {
		g.Errorf("%d groups and %d snapshots are left", len(groups.Items), len(snaps.Items))
	}
	for _, p := range g.pairs {
		l, err := p.Client(0).ListSnapshots(g.ctx, &targetv1.ListSnapshotsRequest{})
		if err != nil || len(l.Snapshots) != 0 {
			g.Errorf("pair %s: %v, %v", p.Name, l, err)
		}
		_, err = p.Client(0).BeginGroupSnapshot(g.ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: uuid, Attempt: attempt + 1})
		if status.Code(err) != codes.FailedPrecondition {
			g.Errorf("pair %s begins another attempt: %v", p.Name, err)
		}
	}
}

// A group snapshot over two pairs and all four owners, through the driver's backend.
func TestGroupSnapshot(t *testing.T) {
	g := startGrouped(t)
	sources := g.sources()
	id := g.b.GroupSnapshotID("nightly")
	snap, err := g.b.CreateGroupSnapshot(g.ctx, id, "nightly", sources)
	g.ok(err)
	if len(snap.Snapshots) != 4 || snap.Created.IsZero() {
		t.Fatalf("%+v", snap)
	}
	var o v1alpha1.LogicalUnitGroupSnapshot
	g.ok(g.c.Get(g.ctx, client.ObjectKey{Name: id}, &o))
	if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady) || o.Status.Attempt == 0 || o.Status.Held == nil || o.Status.Held.Duration <= 0 {
		t.Errorf("%+v", o.Status)
	}
	t.Logf("attempt %d, held for %v", o.Status.Attempt, o.Status.Held.Duration)
	for _, p := range g.pairs {
		has := g.on(p, id)
		if len(has.Members) != 2 {
			t.Fatalf("pair %s: %v", p.Name, has)
		}
		for _, m := range has.Members {
			if m.Stage != targetv1.GroupSnapshotMember_STAGE_READY || m.Snapshot.Attempt != uint64(o.Status.Attempt) {
				t.Errorf("pair %s: %v", p.Name, m)
			}
		}
	}
	var ids []string
	for _, s := range snap.Snapshots {
		ids = append(ids, s.ID)
		// Alone it is not deleted, and can be restored.
		if err := g.b.DeleteSnapshot(g.ctx, s.ID); err == nil {
			t.Fatalf("snapshot %s was deleted by itself", s.ID)
		}
	}
	req := g.wish("restored")
	req.SourceSnapshot = ids[0]
	restored, err := g.b.CreateVolume(g.ctx, req)
	g.ok(err)
	again, err := g.b.CreateGroupSnapshot(g.ctx, id, "nightly", sources)
	if err != nil || len(again.Snapshots) != 4 || !again.Created.Equal(snap.Created) {
		t.Errorf("%+v, %v", again, err)
	}
	g.ok(g.b.DeleteGroupSnapshot(g.ctx, id, ids))
	g.nothingLeft(string(o.UID), uint64(o.Status.Attempt))
	if _, err := g.b.GetGroupSnapshot(g.ctx, id); !errors.Is(err, backend.ErrNotFound) {
		t.Error(err)
	}
	for _, v := range append(sources, restored.ID) {
		g.ok(g.b.DeleteVolume(g.ctx, v))
	}
}

// The operator is stopped again and again while group snapshots are taken and deleted.
func TestGroupSnapshotWhileTheOperatorRestarts(t *testing.T) {
	g := startGrouped(t)
	sources := g.sources()
	for i := range 6 {
		name := fmt.Sprintf("night-%d", i)
		id := g.b.GroupSnapshotID(name)
		result := make(chan error, 1)
		go func() {
			_, err := g.b.CreateGroupSnapshot(g.ctx, id, name, sources)
			result <- err
		}()
		var o v1alpha1.LogicalUnitGroupSnapshot
		// The moment differs: after the object, the attempt, or so many members of the pairs.
		g.ok(harness.Wait(g.ctx, "the group snapshot is under way", func() (bool, string) {
			err := g.c.Get(g.ctx, client.ObjectKey{Name: id}, &o)
			if apierrors.IsNotFound(err) {
				return false, err.Error()
			}
			g.ok(err)
			return i%3 == 0 || o.Status.Attempt > 0 && (i%3 == 1 || len(g.on(g.pairs[1], id).Members) > 0), fmt.Sprintf("%+v", o.Status)
		}))
		g.stop()
		g.run()
		if i%2 == 0 {
			g.ok(<-result)
		}
		g.ok(g.c.Get(g.ctx, client.ObjectKey{Name: id}, &o))
		var ids []string
		for _, m := range o.Spec.Members {
			ids = append(ids, m.Snapshot)
		}
		g.ok(g.b.DeleteGroupSnapshot(g.ctx, id, ids))
		if i%2 != 0 {
			<-result // it may have been taken before
		}
		// The driver's call that was still waiting may have made the object again.
		g.ok(g.b.DeleteGroupSnapshot(g.ctx, id, ids))
		for _, p := range g.pairs {
			l, err := p.Client(0).ListSnapshots(g.ctx, &targetv1.ListSnapshotsRequest{})
			if err != nil || len(l.Snapshots) != 0 {
				t.Fatalf("pair %s: %v, %v", p.Name, l, err)
			}
		}
	}
}
