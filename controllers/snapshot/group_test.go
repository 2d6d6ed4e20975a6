package snapshot

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// ofGroup is a snapshot of a group, with its group.
type ofGroup struct {
	*testing.T
	c    client.Client
	r    *Reconciler
	pair *stub
}

func newOfGroup(t *testing.T, objects ...client.Object) *ofGroup {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1", UID: uid, Generation: 1, Finalizers: []string{v1alpha1.Finalizer}},
		Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: "lun-1", Name: "snap-1", Group: "group-1",
			Placement: &v1alpha1.SnapshotPlacement{Pair: "p", UUID: uid, SourceUUID: source}}}
	c := fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(o).WithObjects(append(objects, o)...).Build()
	x := &ofGroup{T: t, c: c, pair: &stub{}}
	x.r = &Reconciler{Client: c, Live: c, Pairs: x.pair, Recorder: events.NewFakeRecorder(100)}
	return x
}

func theGroup() *v1alpha1.LogicalUnitGroupSnapshot {
	return &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "group-1", UID: "2", Finalizers: []string{v1alpha1.Finalizer}},
		Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: "c", Members: []v1alpha1.GroupSnapshotMember{{Source: "lun-1", Snapshot: "snap-1"}}}}
}

func (x *ofGroup) look(want, says string) *v1alpha1.LogicalUnitSnapshot {
	x.Helper()
	if _, err := x.r.Reconcile(x.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "snap-1"}}); err != nil {
		x.Fatal(err)
	}
	var now v1alpha1.LogicalUnitSnapshot
	err := x.c.Get(x.Context(), client.ObjectKey{Name: "snap-1"}, &now)
	if apierrors.IsNotFound(err) && want == "" {
		return nil
	}
	if err != nil {
		x.Fatal(err)
	}
	c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady)
	if got := string(c.Status) + " " + c.Reason; got != want || !strings.Contains(c.Message, says) {
		x.Fatalf("%s (%s), want %s", got, c.Message, want)
	}
	if x.pair.takes != 0 {
		x.Fatal("the snapshot was taken by itself")
	}
	return &now
}

func (x *ofGroup) update(o client.Object) {
	x.Helper()
	if err := x.c.Update(x.Context(), o); err != nil {
		x.Fatal(err)
	}
}

func (x *ofGroup) remove(o client.Object) {
	x.Helper()
	if err := x.c.Delete(x.Context(), o); err != nil {
		x.Fatal(err)
	}
}

// A snapshot of a group is never taken by itself, and does not become Ready before its group is
// published, whatever the pair has.
func TestMemberIsTakenWithItsGroup(t *testing.T) {
	g := theGroup()
	x := newOfGroup(t, g)
	x.look("False Progressing", "is taken with the group snapshot group-1")
	x.pair.snap = &targetv1.Snapshot{Uuid: uid, SizeBytes: 8 << 20}
	if now := x.look("False Progressing", ""); now.Annotations[v1alpha1.AnnotationMade] != "" || now.Status.Size != nil {
		t.Fatalf("of an attempt that may fail: %+v", now)
	}
	g.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
	x.update(g)
	kept := x.pair.snap
	x.pair.snap = nil
	x.look("False Missing", "delete the VolumeGroupSnapshot")
	x.pair.snap = kept
	if now := x.look("True Ready", ""); now.Annotations[v1alpha1.AnnotationMade] != "true" || now.Status.Size.Value() != 8<<20 {
		t.Errorf("%+v", now)
	}
	if r := x.r.membersOf(t.Context(), g); len(r) != 1 || r[0].Name != "snap-1" {
		t.Errorf("a change of the group reconciles %v", r)
	}
}

// Without its group a snapshot is not taken; one that was taken stays, as after an import.
func TestMemberWithoutItsGroup(t *testing.T) {
	x := newOfGroup(t)
	x.pair.snap = &targetv1.Snapshot{Uuid: uid}
	now := x.look("False NoSource", "LogicalUnitGroupSnapshot group-1, with which this snapshot is taken, does not exist")
	now.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
	x.update(now)
	now = x.look("True Ready", "")
	now.Spec.Destroy = true
	x.update(now)
	x.remove(now)
	x.look("", "")
	if x.pair.snap != nil {
		t.Error("the data is still there")
	}
	g := theGroup()
	g.Spec.Members[0].Source = "lun-9"
	x = newOfGroup(t, g)
	x.look("False Invalid", "does not have this snapshot of lun-1")
}

// One snapshot of a group is destroyed with its group only.
func TestMemberIsDestroyedWithItsGroup(t *testing.T) {
	g := theGroup()
	g.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
	x := newOfGroup(t, g)
	x.pair.snap = &targetv1.Snapshot{Uuid: uid}
	now := x.look("True Ready", "")
	now.Spec.Destroy = true
	x.update(now)
	x.remove(now)
	for _, step := range []func(){func() {}, func() { g.Spec.Destroy = true; x.update(g) }} {
		step()
		now = x.look("False InUse", "is part of the group snapshot group-1")
		if x.pair.snap == nil || !slices.Contains(now.Finalizers, v1alpha1.Finalizer) {
			t.Fatal("destroyed by itself")
		}
	}
	x.remove(g)
	x.look("", "")
	if x.pair.snap != nil {
		t.Error("the data is still there")
	}
}
