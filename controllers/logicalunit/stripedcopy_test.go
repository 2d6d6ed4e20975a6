package logicalunit

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

var made = map[string]string{v1alpha1.AnnotationMade: "true"}

func (f *fixture) create(o client.Object) {
	f.Helper()
	if err := f.c.Create(f.Context(), o); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) reads(want string, says ...string) *v1alpha1.LogicalUnit {
	f.Helper()
	lu, _, err := f.look()
	c := meta.FindStatusCondition(lu.Status.Conditions, v1alpha1.ConditionReady)
	if condition(lu, "Ready") != want {
		f.Fatalf("%+v, %v, want %s", c, err, want)
	}
	for _, says := range says {
		if !strings.Contains(c.Message, says) {
			f.Errorf("%q does not say %q", c.Message, says)
		}
	}
	return lu
}

func sourceSnapshot(name string, s *v1alpha1.Striping, leg *v1alpha1.Leg) *v1alpha1.LogicalUnitSnapshot {
	return &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: made}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: "lun-0", Striped: s, Leg: leg,
		Placement: &v1alpha1.SnapshotPlacement{Pair: "p", Pool: "fast", UUID: uuidOfSource}}}
}

func sourceVolume(s *v1alpha1.Striping, leg *v1alpha1.Leg) *v1alpha1.LogicalUnit {
	return &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-0", Annotations: made}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Striped: s, Leg: leg,
		Placement: &v1alpha1.Placement{Pair: "p", Pool: "fast", UUID: uuidOfSource}}}
}

func same() *v1alpha1.Striping { return &v1alpha1.Striping{LUNs: 3, StripeBytes: 256 << 10} }

// A striped volume is restored leg by leg, and has the pair and the pool of its source.
func TestStripedVolumeIsRestored(t *testing.T) {
	f := stripedOf(t, &v1alpha1.Source{Snapshot: "snap-0"})
	f.create(sourceSnapshot("snap-0", same(), nil))
	lu := f.reads("False Progressing")
	if at := lu.Spec.Placement; at.Pair != "p" || at.Pool != "fast" {
		t.Errorf("%+v", at)
	}
	for i := range 3 {
		if leg := f.leg(i); leg.Spec.Source == nil || leg.Spec.Source.Snapshot != v1alpha1.LegName("snap-0", i) || leg.Spec.Source.LogicalUnit != "" {
			t.Errorf("%+v", leg.Spec.Source)
		}
	}
	f.allSay()
	f.reads("True Ready")
	// From the disks, it has its source again.
	var legs []*v1alpha1.LogicalUnit
	for i := range 3 {
		leg := f.leg(i)
		leg.Spec.Placement, leg.Spec.Volume = &v1alpha1.Placement{Pair: "p", UUID: uuidOfSource}, &v1alpha1.VolumeInfo{Name: "pvc"}
		back, err := FromDisk("p", &targetv1.LUN{Uuid: uuidOfSource, SizeBytes: 4 * mebi, Labels: diskLabels(leg)})
		if err != nil {
			t.Fatal(err)
		}
		legs = append(legs, back)
	}
	if s := VolumeOf(legs).Spec.Source; s == nil || s.Snapshot != "snap-0" {
		t.Errorf("%+v", s)
	}
}

// A copy has the LUNs of its source: another number of LUNs would be other data.
func TestCopyHasTheLayoutOfItsSource(t *testing.T) {
	wider, coarser := &v1alpha1.Striping{LUNs: 4, StripeBytes: 256 << 10}, &v1alpha1.Striping{LUNs: 3, StripeBytes: 512 << 10}
	for what, c := range map[string]struct{ source, mine *v1alpha1.Striping }{
		"more LUNs": {wider, same()}, "other stripes": {coarser, same()}, "from one LUN": {nil, same()}, "to one LUN": {same(), nil},
	} {
		for _, from := range []*v1alpha1.Source{{Snapshot: "snap-0"}, {LogicalUnit: "lun-0"}} {
			f := setup(t, func(lu *v1alpha1.LogicalUnit) {
				lu.Spec.Size, lu.Spec.Source, lu.Spec.Striped = resource.MustParse("12Mi"), from, c.mine
			})
			f.create(sourceSnapshot("snap-0", c.source, nil))
			f.create(sourceVolume(c.source, nil))
			if lu := f.reads("False Invalid", "spec.striped", "a copy has the LUNs of its source"); lu.Spec.Placement != nil {
				t.Errorf("%s: %+v", what, lu.Spec)
			}
		}
	}
	leg := &v1alpha1.Leg{Of: "whole", UUID: uuidOfSource, Number: 1, Striping: *same()}
	for _, from := range []*v1alpha1.Source{{Snapshot: "snap-0"}, {LogicalUnit: "lun-0"}} {
		f := setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Source = from })
		f.create(sourceSnapshot("snap-0", nil, leg))
		f.create(sourceVolume(nil, leg))
		f.reads("False Invalid", "is a part of whole")
	}
	// A leg is made from the same leg of its volume's source.
	for number, want := range map[int32]string{0: "is a part of whole", 1: ""} {
		f := setup(t, nil)
		p := &pass{Reconciler: f.r, lu: &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Leg: &v1alpha1.Leg{Of: "copy", Number: number, Striping: *same()}}}}
		err := p.sameLayout("snapshot", "snap-0", nil, leg)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("leg %d: %v", number, err)
		}
		if err := p.sameLayout("snapshot", "snap-0", nil, nil); err == nil {
			t.Error("a leg is made from what is none")
		}
	}
}

// point reads the snapshot that the clone lun-1 is made from; nil if there is none.
func (f *fixture) point() *v1alpha1.LogicalUnitGroupSnapshot {
	f.Helper()
	g := &v1alpha1.LogicalUnitGroupSnapshot{}
	if err := f.c.Get(f.Context(), client.ObjectKey{Name: "lun-1"}, g); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		f.Fatal(err)
	}
	return g
}

func cloned(t *testing.T) *fixture {
	f := stripedOf(t, &v1alpha1.Source{LogicalUnit: "lun-0"})
	f.create(sourceVolume(same(), nil))
	return f
}

// A clone is made from a group snapshot of its source, which goes when the clone is made.
func TestStripedVolumeIsCloned(t *testing.T) {
	f := cloned(t)
	lu := f.reads("False Progressing", "the snapshot of the source", "is being taken")
	g := f.point()
	if g == nil || g.Labels[v1alpha1.LabelClone] != lu.Spec.Placement.UUID || g.Spec.Cluster != "c" || len(g.Spec.Members) != 1 || g.Spec.Members[0] != (v1alpha1.GroupSnapshotMember{Source: "lun-0", Snapshot: "lun-1"}) {
		t.Fatalf("%+v", g)
	}
	f.reads("False Progressing")
	if err := f.c.Get(t.Context(), client.ObjectKey{Name: "lun-1-0"}, &v1alpha1.LogicalUnit{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Fatalf("a leg was made before the snapshot was taken: %v", err)
	}
	meta.SetStatusCondition(&g.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: "False", Reason: v1alpha1.ReasonNoRoom, Message: "no room at pair p", ObservedGeneration: g.Generation})
	if err := f.c.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	f.reads("False NoRoom", "no room at pair p")
	g.Annotations, g.Finalizers = made, []string{v1alpha1.Finalizer}
	if err := f.c.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	f.reads("False Progressing")
	for i := range 3 {
		if leg := f.leg(i); leg.Spec.Source == nil || leg.Spec.Source.Snapshot != v1alpha1.LegName("lun-1", i) {
			t.Errorf("%+v", leg.Spec.Source)
		}
	}
	if g := f.point(); g.Spec.Destroy || !g.DeletionTimestamp.IsZero() {
		t.Error("the snapshot goes before the clone is made")
	}
	f.allSay()
	f.reads("True Ready")
	if g := f.point(); !g.Spec.Destroy || g.DeletionTimestamp.IsZero() {
		t.Errorf("the snapshot stays: %+v", g)
	}
	g = f.point()
	g.Finalizers = nil
	if err := f.c.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	f.reads("True Ready")
	if f.point() != nil {
		t.Error("the snapshot is taken again")
	}
}

// A clone that is given up takes its snapshot with it, and none that is another's.
func TestCloneIsGivenUp(t *testing.T) {
	for what, destroy := range map[string]bool{"destroyed": true, "deleted": false} {
		f := cloned(t)
		f.reads("False Progressing")
		if destroy {
			f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Destroy = true })
		}
		lu, _, _ := f.look()
		if err := f.c.Delete(t.Context(), lu); err != nil {
			t.Fatal(err)
		}
		g := f.point()
		g.Annotations = made // so that what is made of it is not waited for
		if err := f.c.Update(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		if lu := f.reads("False Progressing", "is being removed"); lu == nil || f.point() != nil {
			t.Errorf("%s: %+v", what, f.point())
		}
		if _, err := f.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "lun-1"}}); err != nil {
			t.Error(err)
		}
		if err := f.c.Get(t.Context(), client.ObjectKey{Name: "lun-1"}, lu); client.IgnoreNotFound(err) != nil || err == nil || f.point() != nil {
			t.Errorf("%s: %v; %+v", what, err, f.point())
		}
	}
	f := cloned(t)
	f.create(&v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "lun-1", Annotations: made}})
	f.reads("False Invalid", "was not taken for this clone")
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Destroy = true })
	lu, _, _ := f.look()
	if err := f.c.Delete(t.Context(), lu); err != nil {
		t.Fatal(err)
	}
	if _, err := f.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "lun-1"}}); err != nil {
		t.Error(err)
	}
	if g := f.point(); g == nil || g.Spec.Destroy {
		t.Errorf("%+v", g)
	}
}
