package groupsnapshot

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/snapshot"
)

// The legs of a striped volume are taken, and not the volume: in the same attempt as the other
// members, each on its pair.
func TestLegsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := stripedWorld(t)
		r := w.placed()
		w.look(r, "False Progressing", false, "group-1-2-0 of lun-2-0 is being placed")
		if got := w.calls(); got != "" {
			t.Errorf("before the legs are placed: %s", got)
		}
		w.place()
		w.look(r, "False Progressing", false, "4 of 4 LUNs are being copied")
		var asked []string
		for _, name := range []string{"p", "q"} {
			for _, q := range w.pairs[name].asked {
				asked = append(asked, name+" "+q.Uuid+" of "+q.SourceLunUuid)
				if leg, err := v1alpha1.LegFromDisk(q.Labels); err != nil || (leg != nil) != (len(q.Uuid) > len("snap-0")) || leg != nil && (leg.Of != "group-1-2" || q.Labels[snapshot.LabelObject] != v1alpha1.LegName(leg.Of, int(leg.Number))) {
					t.Errorf("%+v, %v", q, err)
				}
			}
		}
		if want := []string{"p snap-0 of source-0", "p snap-2-0 of source-2-0", "q snap-1 of source-1", "q snap-2-1 of source-2-1"}; !slices.Equal(asked, want) {
			t.Errorf("%v", asked)
		}
		w.copied()
		w.look(r, "True Ready", false, "the 3 snapshots are of one instant")
	})
}

// An object that has the name of a leg, and is of something else, is not taken, nor removed.
func TestForeignLeg(t *testing.T) {
	for what, change := range map[string]func(*v1alpha1.LogicalUnitSnapshot){
		"is no part of this group snapshot": func(s *v1alpha1.LogicalUnitSnapshot) { s.Spec.Leg.UUID = "of another" },
		"was taken before": func(s *v1alpha1.LogicalUnitSnapshot) {
			s.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
		},
		"was deleted by itself": func(s *v1alpha1.LogicalUnitSnapshot) { s.Spec.Destroy = true },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := stripedWorld(t)
			r := w.placed()
			leg := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "group-1-2-1"}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: "lun-2-1", Name: "group-1-2-1", Group: "group-1",
				Leg: &v1alpha1.Leg{Of: "group-1-2", UUID: "snap-2", Number: 1, Striping: v1alpha1.Striping{LUNs: 2, StripeBytes: 65536}}}}
			change(leg)
			w.ok(w.c.Create(t.Context(), leg))
			w.look(r, "False Invalid", false, "group-1-2-1", what)
			if got := w.calls(); got != "" {
				t.Errorf("%s: %s", what, got)
			}
			if what != "is no part of this group snapshot" {
				return
			}
			w.destroy()
			for range 4 {
				_, err := w.pass(r)
				w.ok(err)
				for _, s := range w.snapshots() {
					if !s.DeletionTimestamp.IsZero() && s.Spec.Destroy {
						s.Finalizers = nil
						w.ok(w.c.Update(t.Context(), &s))
					}
				}
			}
			if err := w.c.Get(t.Context(), client.ObjectKeyFromObject(leg), leg); err != nil || !leg.DeletionTimestamp.IsZero() || w.read() != nil {
				t.Errorf("%+v, %v", leg, err)
			}
		})
	}
}

// The LUNs of all members count for the limit of a cut.
func TestTooManyLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := w.read()
		for i := 3; i < 6; i++ {
			g.Spec.Members = append(g.Spec.Members, v1alpha1.GroupSnapshotMember{Source: fmt.Sprintf("lun-%d", i), Snapshot: fmt.Sprintf("group-1-%d", i)})
		}
		w.ok(w.c.Update(t.Context(), g))
		r := w.placed()
		for _, s := range w.snapshots() {
			if s.Name == "group-1-5" {
				continue
			}
			s.Spec.Striped = &v1alpha1.Striping{LUNs: 13, StripeBytes: 65536}
			w.ok(w.c.Update(t.Context(), &s))
		}
		w.look(r, "False Invalid", false, "66 LUNs", "64 at most")
		if got := w.calls(); got != "" {
			t.Errorf("%s", got)
		}
	})
}

// The pairs of the legs are told that the group has ended, also if it has no other member there.
func TestEndOfLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := stripedWorld(t)
		g := w.read()
		g.Spec.Members = g.Spec.Members[2:]
		w.ok(w.c.Update(t.Context(), g))
		r := w.reconciler()
		w.look(r, "False Progressing", false, "group-1-2 of lun-2 is being placed")
		w.place()
		w.look(r, "False Progressing", false, "group-1-2-0 of lun-2-0 is being placed")
		w.place()
		w.look(r, "False Progressing", false, "2 of 2 LUNs are being copied")
		w.destroy()
		for range 10 {
			_, err := w.pass(r)
			w.ok(err)
			w.place()
		}
		if w.read() != nil || len(w.snapshots()) != 0 {
			t.Errorf("%+v, %d objects", w.read(), len(w.snapshots()))
		}
		for name, p := range w.pairs {
			if len(p.members) != 0 || !p.final {
				t.Errorf("pair %s: %d members, final %v", name, len(p.members), p.final)
			}
		}
	})
}
