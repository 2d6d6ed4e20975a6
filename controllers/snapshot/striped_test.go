package snapshot

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// ofStriped has a striped volume of three LUNs with its snapshot and its group.
type ofStriped struct {
	*testing.T
	c    client.Client
	r    *Reconciler
	pair *stub
}

var layout = v1alpha1.Striping{LUNs: 3, StripeBytes: 256 << 10}

func newOfStriped(t *testing.T, group string) *ofStriped {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	made := map[string]string{v1alpha1.AnnotationMade: "true"}
	volume := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-1", Annotations: made},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Striped: &layout, Placement: &v1alpha1.Placement{Pair: "p", Pool: "fast", UUID: source}}}
	o := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1", UID: uid, Generation: 1},
		Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: "lun-1", Name: "snap-1", Group: group}}
	g := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1", UID: "2", Finalizers: []string{v1alpha1.Finalizer}},
		Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: "c", Members: []v1alpha1.GroupSnapshotMember{{Source: "lun-1", Snapshot: "snap-1"}}}}
	objects := []client.Object{volume, o, g}
	for i := range 3 {
		objects = append(objects, &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.LegName("lun-1", i), Annotations: made},
			Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Leg: &v1alpha1.Leg{Of: "lun-1", UUID: source, Number: int32(i), Striping: layout}, Placement: &v1alpha1.Placement{Pair: "p", Pool: "fast", UUID: fmt.Sprintf("leg %d", i)}}})
	}
	c := fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(o, g).WithObjects(objects...).Build()
	x := &ofStriped{T: t, c: c, pair: &stub{}}
	x.r = &Reconciler{Client: c, Live: c, Pairs: x.pair, Recorder: events.NewFakeRecorder(100)}
	return x
}

func (x *ofStriped) get(name string) *v1alpha1.LogicalUnitSnapshot {
	x.Helper()
	s := &v1alpha1.LogicalUnitSnapshot{}
	if err := x.c.Get(x.Context(), client.ObjectKey{Name: name}, s); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		x.Fatal(err)
	}
	return s
}

func (x *ofStriped) look(name, want string, says ...string) *v1alpha1.LogicalUnitSnapshot {
	x.Helper()
	_, err := x.r.Reconcile(x.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: name}})
	s := x.get(name)
	if s == nil {
		if want != "" {
			x.Fatalf("%s is gone: %v", name, err)
		}
		return nil
	}
	c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil {
		x.Fatalf("%s says nothing: %v", name, err)
	}
	if got := string(c.Status) + " " + c.Reason; got != want {
		x.Fatalf("%s: %s (%s), %v, want %s", name, got, c.Message, err, want)
	}
	for _, says := range says {
		if !strings.Contains(c.Message, says) {
			x.Errorf("%q does not say %q", c.Message, says)
		}
	}
	if x.pair.takes != 0 {
		x.Fatal("a snapshot was taken by itself")
	}
	return s
}

func (x *ofStriped) ok(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

// legs creates the objects of the legs, as the reconciler of groups does.
func (x *ofStriped) legs() {
	x.Helper()
	for i := range 3 {
		name := v1alpha1.LegName("snap-1", i)
		x.ok(x.c.Create(x.Context(), &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "leg", Generation: 1},
			Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: v1alpha1.LegName("lun-1", i), Name: name, Group: "snap-1", Leg: &v1alpha1.Leg{Of: "snap-1", UUID: uid, Number: int32(i), Striping: layout}}}))
	}
}

// taken writes what a leg says when its group was published.
func (x *ofStriped) taken(i int, change func(*v1alpha1.LogicalUnitSnapshot)) {
	x.Helper()
	s := x.get(v1alpha1.LegName("snap-1", i))
	s.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
	x.ok(x.c.Update(x.Context(), s))
	at := metav1.Unix(1e9+int64(i%2), 0)
	s.Status.Size, s.Status.TakenAt = resource.NewQuantity(4<<20, resource.BinarySI), &at
	meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: "True", Reason: "Ready", ObservedGeneration: s.Generation})
	if change != nil {
		change(s)
	}
	x.ok(x.c.Status().Update(x.Context(), s))
}

func (x *ofStriped) group(change func(*v1alpha1.LogicalUnitGroupSnapshot)) {
	x.Helper()
	g := &v1alpha1.LogicalUnitGroupSnapshot{}
	x.ok(x.c.Get(x.Context(), client.ObjectKey{Name: "snap-1"}, g))
	change(g)
	x.ok(x.c.Update(x.Context(), g))
}

func published(g *v1alpha1.LogicalUnitGroupSnapshot) {
	g.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
}

// A snapshot of a striped volume sums up its legs, and is made when all of them are.
func TestSnapshotOfStripedVolumeSumsUpItsLegs(t *testing.T) {
	x := newOfStriped(t, "snap-1")
	s := x.look("snap-1", "False Progressing", "is taken with the group snapshot")
	if at := s.Spec.Placement; s.Spec.Striped == nil || *s.Spec.Striped != layout || at.Pair != "p" || at.Pool != "fast" || at.UUID != uid || at.SourceUUID != "" {
		t.Fatalf("%+v", s.Spec)
	}
	x.legs()
	x.group(published)
	x.taken(0, nil)
	x.taken(1, nil)
	if s := x.look("snap-1", "False Progressing", "snap-1-2"); s.Annotations[v1alpha1.AnnotationMade] != "" {
		t.Error("made with two legs")
	}
	x.taken(2, func(s *v1alpha1.LogicalUnitSnapshot) { s.Status.Size = nil })
	x.look("snap-1", "False Progressing", "snap-1-2")
	x.taken(2, func(s *v1alpha1.LogicalUnitSnapshot) { s.Status.Size = resource.NewQuantity(5<<20, resource.BinarySI) })
	s = x.look("snap-1", "True Ready")
	if s.Annotations[v1alpha1.AnnotationMade] != "true" || s.Status.Size.Value() != 12<<20 || s.Status.TakenAt.Unix() != 1e9+1 {
		t.Errorf("%+v", s.Status)
	}
	// What one leg says is what the snapshot says.
	x.taken(1, func(s *v1alpha1.LogicalUnitSnapshot) {
		meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: "False", Reason: v1alpha1.ReasonMissing, Message: "pair p no longer has it", ObservedGeneration: s.Generation})
	})
	x.look("snap-1", "False Missing", "snap-1-1", "pair p no longer has it")
	x.ok(x.c.Delete(t.Context(), x.get("snap-1-2")))
	x.taken(1, nil)
	x.look("snap-1", "False Missing", "snap-1-2", "another point in time")
}

// Neither a striped volume nor a leg is taken by itself.
func TestStripedVolumeIsNotTakenByItself(t *testing.T) {
	x := newOfStriped(t, "")
	x.look("snap-1", "False Invalid", "lun-1 is striped", "LogicalUnitGroupSnapshot")
	for name, c := range map[string]struct {
		source, says string
		leg          *v1alpha1.Leg
	}{
		"of a leg":              {"lun-1-0", "a part of the striped volume lun-1", nil},
		"of no whole":           {"lun-1-0", "snap-9 does not exist", &v1alpha1.Leg{Of: "snap-9", UUID: uid, Striping: layout}},
		"of an earlier one":     {"lun-1-0", "is not the one with the UUID", &v1alpha1.Leg{Of: "snap-2", UUID: source, Striping: layout}},
		"of another layout":     {"lun-1-0", "is not the one with the UUID", &v1alpha1.Leg{Of: "snap-2", UUID: uid, Striping: v1alpha1.Striping{LUNs: 4, StripeBytes: 65536}}},
		"of another leg":        {"lun-1-0", "is not leg 1 of lun-1", &v1alpha1.Leg{Of: "snap-2", UUID: uid, Number: 1, Striping: layout}},
		"of the striped volume": {"lun-1", "is not leg 0 of lun-1", &v1alpha1.Leg{Of: "snap-2", UUID: uid, Striping: layout}},
	} {
		x := newOfStriped(t, "snap-1")
		x.ok(x.c.Create(t.Context(), &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-2"},
			Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: "lun-1", Group: "snap-1", Striped: &layout, Placement: &v1alpha1.SnapshotPlacement{Pair: "p", UUID: uid}}}))
		x.ok(x.c.Create(t.Context(), &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "part"},
			Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: c.source, Group: "snap-1", Leg: c.leg}}))
		if s := x.look("part", "False Invalid", c.says); s.Spec.Placement != nil {
			t.Errorf("%s: %+v", name, s.Spec)
		}
	}
}

// The legs go first, and only those of this snapshot.
func TestEndOfSnapshotOfStripedVolume(t *testing.T) {
	x := newOfStriped(t, "snap-1")
	x.look("snap-1", "False Progressing")
	x.legs()
	for i := range 3 {
		x.look(v1alpha1.LegName("snap-1", i), "False Progressing", "is taken with the group snapshot")
	}
	foreign := x.get("snap-1-2")
	foreign.Spec.Leg.UUID = source
	x.ok(x.c.Update(t.Context(), foreign))
	end := func(name string) {
		s := x.get(name)
		s.Spec.Destroy = true
		x.ok(x.c.Update(t.Context(), s))
		x.ok(x.c.Delete(t.Context(), s))
	}
	end("snap-1-0")
	x.look("snap-1-0", "False InUse", "part of the group snapshot snap-1")
	end("snap-1")
	x.look("snap-1", "False InUse", "part of the group snapshot snap-1")
	x.group(func(g *v1alpha1.LogicalUnitGroupSnapshot) { g.Spec.Destroy = true })
	g := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1"}}
	x.ok(x.c.Delete(t.Context(), g))
	x.look("snap-1", "False Progressing", "snap-1-0, snap-1-1")
	if leg := x.get("snap-1-1"); !leg.Spec.Destroy || leg.DeletionTimestamp.IsZero() {
		t.Errorf("%+v", leg)
	}
	x.look("snap-1-0", "")
	x.look("snap-1", "False Progressing", "snap-1-1")
	x.look("snap-1-1", "")
	x.look("snap-1", "")
	if left := x.get("snap-1-2"); left == nil || left.Spec.Destroy || !left.DeletionTimestamp.IsZero() {
		t.Errorf("a snapshot of something else: %+v", left)
	}
}

// A snapshot of a striped volume and its legs come back from the labels on the disks.
func TestSnapshotOfStripedVolumeFromDisk(t *testing.T) {
	x := newOfStriped(t, "snap-1")
	whole := x.look("snap-1", "False Progressing")
	x.legs()
	var legs []*v1alpha1.LogicalUnitSnapshot
	for i := range 3 {
		leg := x.look(v1alpha1.LegName("snap-1", i), "False Progressing")
		back, err := FromDisk("p", &targetv1.Snapshot{Uuid: leg.Spec.Placement.UUID, SourceLunUuid: leg.Spec.Placement.SourceUUID, Volume: "fast", Labels: DiskLabels(leg)})
		if err != nil || !equality.Semantic.DeepEqual(back.Spec, leg.Spec) || back.Labels[v1alpha1.LabelStriped] != "snap-1" {
			t.Fatalf("%+v, %v, was %+v", back, err, leg.Spec)
		}
		legs = append(legs, back)
	}
	got := VolumeOf([]*v1alpha1.LogicalUnitSnapshot{legs[1], legs[2]})
	if got.Name != "snap-1" || got.Annotations[v1alpha1.AnnotationMade] != "true" || !equality.Semantic.DeepEqual(got.Spec, whole.Spec) {
		t.Errorf("%+v, was %+v", got.Spec, whole.Spec)
	}
	damaged := DiskLabels(legs[0])
	damaged["gemel.storage/legs"] = "three"
	if back, err := FromDisk("p", &targetv1.Snapshot{Labels: damaged}); err == nil {
		t.Errorf("%+v", back)
	}
}

// A group that is published wakes the legs of its members, too.
func TestPublishedGroupWakesLegs(t *testing.T) {
	x := newOfStriped(t, "snap-1")
	g := &v1alpha1.LogicalUnitGroupSnapshot{Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Members: []v1alpha1.GroupSnapshotMember{{Source: "lun-1", Snapshot: "snap-1"}, {Source: "lun-2", Snapshot: "snap-2"}}}}
	if got := x.r.membersOf(t.Context(), g); len(got) != 2 {
		t.Errorf("before it is placed: %v", got)
	}
	x.look("snap-1", "False Progressing")
	got := x.r.membersOf(t.Context(), g)
	if len(got) != 5 || got[3].Name != "snap-1-2" {
		t.Errorf("%v", got)
	}
	if got := wholeOf(t.Context(), &v1alpha1.LogicalUnitSnapshot{Spec: v1alpha1.LogicalUnitSnapshotSpec{Leg: &v1alpha1.Leg{Of: "snap-1"}}}); len(got) != 1 || got[0].Name != "snap-1" {
		t.Errorf("%v", got)
	}
}
