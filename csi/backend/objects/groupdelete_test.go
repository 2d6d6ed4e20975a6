package objects

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// groupOf is an API server with a group snapshot "group-1" of two LUNs.
func groupOf(t *testing.T, o *coordinator) (client.WithWatch, *Backend) {
	t.Helper()
	o.t, o.take = t, o.publish
	c := o.server(unitNamed("lun-a", "main"), unitNamed("lun-b", "main"))
	b := New(c)
	if _, err := b.CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a", "lun-b"}); err != nil {
		t.Fatal(err)
	}
	return c, b
}

func TestGroupIsDeletedWithItsSnapshots(t *testing.T) {
	c, b := groupOf(t, &coordinator{remove: true})
	for _, wrong := range [][]string{nil, {"group-1-0"}, {"group-1-0", "group-1-2"}, {"group-1-0", "group-1-0"}, {"group-1-0", "group-1-1", "snap-1"}} {
		if err := b.DeleteGroupSnapshot(t.Context(), "group-1", wrong); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "group-1-0, group-1-1") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	var g v1alpha1.LogicalUnitGroupSnapshot
	if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1"}, &g); err != nil || g.Spec.Destroy {
		t.Fatalf("a wrong list has begun the deletion: %+v, %v", g, err)
	}
	for range 2 { // the second call finds nothing
		if err := b.DeleteGroupSnapshot(t.Context(), "group-1", []string{"group-1-1", "group-1-0"}); err != nil {
			t.Fatal(err)
		}
	}
	var left v1alpha1.LogicalUnitSnapshotList
	if err := c.List(t.Context(), &left); err != nil || len(left.Items) != 0 {
		t.Errorf("%+v, %v", left.Items, err)
	}
	if err := b.DeleteGroupSnapshot(t.Context(), "of another driver/1", nil); err != nil {
		t.Error(err)
	}
}

// Until the operator has removed everything, the call waits; the group is not usable meanwhile, and
// a new one under its name waits too.
func TestDeletionWaitsForTheOperator(t *testing.T) {
	o := &coordinator{}
	c, b := groupOf(t, o)
	both := []string{"group-1-0", "group-1-1"}
	short := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return do(ctx)
	}
	if err := short(func(ctx context.Context) error { return b.DeleteGroupSnapshot(ctx, "group-1", both) }); !errors.Is(err, backend.ErrTimeout) {
		t.Error(err)
	}
	if _, err := b.GetGroupSnapshot(t.Context(), "group-1"); !errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "being deleted") {
		t.Error(err)
	}
	if err := short(func(ctx context.Context) error {
		_, err := b.CreateGroupSnapshot(ctx, "group-1", "g", []string{"lun-a", "lun-b"})
		return err
	}); !errors.Is(err, backend.ErrTimeout) || o.made != 1 {
		t.Error(err, o.made)
	}
	var g v1alpha1.LogicalUnitGroupSnapshot
	if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1"}, &g); err != nil || !g.Spec.Destroy || g.DeletionTimestamp.IsZero() {
		t.Fatalf("%+v, %v", g, err)
	}
	for _, name := range both {
		if err := c.Delete(t.Context(), &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	g.Finalizers = nil
	if err := c.Update(t.Context(), &g); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a", "lun-b"}); err != nil || o.made != 2 {
		t.Error(err, o.made)
	}
}

// A snapshot of a group is deleted with the group only.
func TestMemberIsNotDeletedAlone(t *testing.T) {
	c, b := groupOf(t, &coordinator{remove: true})
	if err := b.DeleteSnapshot(t.Context(), "group-1-0"); !errors.Is(err, backend.ErrInGroup) || !strings.Contains(err.Error(), `"group-1"`) {
		t.Error(err)
	}
	var s v1alpha1.LogicalUnitSnapshot
	if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1-0"}, &s); err != nil || s.Spec.Destroy {
		t.Errorf("%+v, %v", s, err)
	}
}

// When only the snapshots were recreated from the disks, they are deleted by the group's ID.
func TestSnapshotsOfALostGroupAreDeleted(t *testing.T) {
	o := &coordinator{}
	c, b := groupOf(t, o)
	var g v1alpha1.LogicalUnitGroupSnapshot
	if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1"}, &g); err != nil {
		t.Fatal(err)
	}
	g.Finalizers = nil
	if err := errors.Join(c.Update(t.Context(), &g), c.Delete(t.Context(), &g)); err != nil {
		t.Fatal(err)
	}
	other := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1"}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "main", Source: "lun-a"}}
	if err := c.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteSnapshot(t.Context(), "group-1-0"); !errors.Is(err, backend.ErrInGroup) {
		t.Error(err)
	}
	if err := b.DeleteGroupSnapshot(t.Context(), "group-1", []string{"group-1-0"}); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "group-1-1") {
		t.Error(err)
	}
	if err := b.DeleteGroupSnapshot(t.Context(), "", []string{"snap-1"}); err != nil {
		t.Error(err)
	}
	if err := b.DeleteGroupSnapshot(t.Context(), "group-1", []string{"group-1-0", "group-1-1"}); err != nil {
		t.Error(err)
	}
	for name, there := range map[string]bool{"group-1-0": false, "group-1-1": false, "snap-1": true} {
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.LogicalUnitSnapshot{}); apierrors.IsNotFound(err) == there {
			t.Errorf("%s: %v", name, err)
		}
	}
}
