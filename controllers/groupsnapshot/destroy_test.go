package groupsnapshot

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
)

// Every pair has ended the group before the objects go that say which pairs these are. A pair that
// is down delays it.
func TestPairsEndBeforeTheObjectsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.finish()
		w.destroy()
		r := w.reconciler()
		w.fails["q end"] = []codes.Code{codes.Unavailable}
		w.look(r, "False PairDown", true, "pair q: ")
		for _, s := range w.snapshots() {
			if s.Spec.Destroy || !s.DeletionTimestamp.IsZero() {
				t.Errorf("%s goes while pair q has not ended the group", s.Name)
			}
		}
		w.before = func(call string) {
			if strings.HasSuffix(call, "end") && len(w.snapshots()) != 3 {
				t.Errorf("%s: %d objects", call, len(w.snapshots()))
			}
		}
		w.look(r, "False Progressing", false, "3 LogicalUnitSnapshots are being removed")
		w.before = nil
		for _, s := range w.snapshots() {
			if !s.Spec.Destroy || s.DeletionTimestamp.IsZero() {
				t.Errorf("%+v", s)
			}
		}
		w.place()
		if _, err := w.pass(r); err != nil || w.read() != nil {
			t.Error(err, w.read())
		}
	})
}

// Without spec.destroy a deletion changes nothing at the pairs, and takes nothing.
func TestDeletionWithoutDestroyKeepsTheData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := w.finish()
		w.calls()
		w.ok(w.c.Delete(t.Context(), g))
		w.look(w.reconciler(), "True DataKept", false, DataKept)
		w.whole()
		if got := w.calls(); got != "" || len(w.snapshots()) != 3 {
			t.Error(got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		w.ok(w.c.Delete(t.Context(), w.read()))
		w.look(r, "False DataKept", false, "was not taken", DataKept)
		if got := w.calls(); got != "" {
			t.Error(got)
		}
	})
}

// What a published group has lost is said, and not taken again.
func TestLostMemberIsNotTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.finish()
		r := w.reconciler()
		say := func(i int, reason string) {
			s := w.snapshots()[i]
			finding.Set(&s.Status.Conditions, v1alpha1.ConditionReady, s.Generation, finding.New(reason, "what it says"), "", "")
			w.ok(w.c.Status().Update(t.Context(), &s))
		}
		w.calls()
		say(0, v1alpha1.ReasonProgressing) // it was not reconciled since the group was published
		w.look(r, "True Ready", false)
		say(0, v1alpha1.ReasonPairDown)
		w.look(r, "False PairDown", false, "member group-1-0 of lun-0: what it says")
		say(2, v1alpha1.ReasonMissing)
		w.look(r, "False Missing", false, "member group-1-2 of lun-2: what it says")
		s := w.snapshots()[1]
		s.Finalizers = nil
		w.ok(w.c.Update(t.Context(), &s))
		w.ok(w.c.Delete(t.Context(), &s))
		w.look(r, "False Missing", false, "group-1-1, of lun-1, no longer exists", "kubectl gemel import")
		if got := w.calls(); got != "" || len(w.snapshots()) != 2 {
			t.Errorf("%s, %d objects", got, len(w.snapshots()))
		}
	})
}

// The mark without the status of a crash: the members know when they were taken.
func TestTimeIsKnownAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := w.finish()
		g.Status = v1alpha1.LogicalUnitGroupSnapshotStatus{}
		w.ok(w.c.Status().Update(t.Context(), g))
		r := w.reconciler()
		w.look(r, "True Ready", false)
		at := metav1.Unix(1e9, 0)
		s := w.snapshots()[1]
		s.Status.TakenAt = &at
		w.ok(w.c.Status().Update(t.Context(), &s))
		if g := w.look(r, "True Ready", false); !g.Status.TakenAt.Equal(&at) {
			t.Errorf("%+v", g.Status)
		}
	})
}

// Objects that only have the name of a member are not taken, and not removed.
func TestForeignMembers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.LogicalUnitSnapshot)
		says   string
	}{
		"another source": {func(s *v1alpha1.LogicalUnitSnapshot) { s.Spec.Source = "lun-9" }, "of source lun-9"},
		"another group":  {func(s *v1alpha1.LogicalUnitSnapshot) { s.Spec.Group = "group-9" }, `group "group-9"`},
		"taken before": {func(s *v1alpha1.LogicalUnitSnapshot) {
			s.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
		}, "was taken before"},
		"deleted": {func(s *v1alpha1.LogicalUnitSnapshot) { s.Spec.Destroy = true }, "was deleted by itself"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			r := w.placed()
			s := w.snapshots()[1]
			c.change(&s)
			w.ok(w.c.Update(t.Context(), &s))
			if g := w.look(r, "False Invalid", false, "group-1-1", c.says); g.Status.Attempt != 0 || w.calls() != "" {
				t.Errorf("%s: %+v", name, g.Status)
			}
			w.destroy()
			for range 3 {
				_, err := w.pass(r)
				w.ok(err)
				w.place()
			}
			if n := len(w.snapshots()); w.read() != nil || strings.HasPrefix(name, "another") != (n == 1) {
				t.Errorf("%s: %+v, %d objects", name, w.read(), n)
			}
		})
	}
}

// Why a member has no pair is in the condition of the group.
func TestMemberThatCannotBePlaced(t *testing.T) {
	w := newWorld(t)
	r := w.reconciler()
	w.look(r, "False Progressing", false)
	s := w.snapshots()[0]
	finding.Set(&s.Status.Conditions, v1alpha1.ConditionReady, s.Generation, finding.New(v1alpha1.ReasonNoSource, "it is gone"), "", "")
	w.ok(w.c.Status().Update(t.Context(), &s))
	w.look(r, "False NoSource", false, "member group-1-0 of lun-0: it is gone")
	if g := w.read(); g.Status.Attempt != 0 || w.calls() != "" {
		t.Errorf("%+v", g.Status)
	}
}
