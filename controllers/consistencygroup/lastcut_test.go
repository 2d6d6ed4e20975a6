package consistencygroup

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// cutOf is a group snapshot of LUNs; it was taken so many seconds after the first one, or not yet.
func cutOf(name string, second int64, luns ...string) *v1alpha1.LogicalUnitGroupSnapshot {
	s := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: "main"}}
	for _, lun := range luns {
		s.Spec.Members = append(s.Spec.Members, v1alpha1.GroupSnapshotMember{Source: lun, Snapshot: name + "-" + lun})
	}
	if second >= 0 {
		at := metav1.Unix(1e9+second, 0)
		s.Status.TakenAt, s.Status.Held = &at, &metav1.Duration{Duration: 8 * time.Millisecond}
	}
	return s
}

func readyCut(s *v1alpha1.LogicalUnitGroupSnapshot) *v1alpha1.LogicalUnitGroupSnapshot {
	s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, LastTransitionTime: metav1.Unix(1e9, 0)}}
	return s
}

// A group shows the last group snapshot that exists and has been taken of any of its members.
func TestLastCut(t *testing.T) {
	w := setup(t)
	w.member("d0", "a")
	w.member("d1", "b")
	w.group("db")
	says := func(want string) {
		t.Helper()
		g, _ := w.look("db")
		got := "none"
		if c := g.Status.LastCut; c != nil {
			got = fmt.Sprintf("%s at %d, %d members, held %v, ready %v", c.LogicalUnitGroupSnapshot, c.TakenAt.Unix()-1e9, c.Members, c.Held.Duration, c.Ready)
		}
		if got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
	says("none")
	w.create(cutOf("begun", -1, "g-d0", "g-d1"), readyCut(cutOf("of-others", 50, "g-x")))
	says("none")
	w.create(readyCut(cutOf("first", 10, "g-d0", "g-d1", "g-x")))
	says("first at 10, 2 members, held 8ms, ready true")
	w.create(cutOf("second", 20, "g-d1"))
	says("second at 20, 1 members, held 8ms, ready false")
	if err := w.c.Delete(t.Context(), cutOf("second", 20)); err != nil {
		t.Fatal(err)
	}
	says("first at 10, 2 members, held 8ms, ready true")
}

// A group hears of the group snapshots of its members; the operator's rights suffice.
func TestGroupFollowsItsCuts(t *testing.T) {
	w := run(t)
	g := w.group("db", "db")
	lu := w.bind(w.claim("d0", "db"))
	w.becomes(g, "True Ready", "a: 1, b: 0")
	shows := func(what string, ok func(*v1alpha1.GroupCut) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		w.ok(harness.Wait(ctx, what, func() (bool, string) {
			err := w.c.Get(ctx, client.ObjectKeyFromObject(g), g)
			return err == nil && ok(g.Status.LastCut), fmt.Sprintf("%v %+v", err, g.Status.LastCut)
		}))
	}
	s := cutOf(w.namespace, -1, lu.Name)
	taken := cutOf("", 5).Status
	w.ok(w.c.Create(t.Context(), s))
	s.Status = taken
	w.ok(w.c.Status().Update(t.Context(), s))
	shows("the cut is shown", func(c *v1alpha1.GroupCut) bool { return c != nil && !c.Ready && c.Members == 1 })
	s.Status.Conditions = readyCut(s).Status.Conditions
	w.ok(w.c.Status().Update(t.Context(), s))
	shows("the cut is ready", func(c *v1alpha1.GroupCut) bool { return c != nil && c.Ready })
	w.ok(w.c.Delete(t.Context(), s))
	shows("the cut is gone", func(c *v1alpha1.GroupCut) bool { return c == nil })
}

func TestChangesOfACutThatConcernItsGroup(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.LogicalUnitGroupSnapshot)
		want   bool
	}{
		"taken": {func(s *v1alpha1.LogicalUnitGroupSnapshot) { s.Status = cutOf("", 5).Status }, true},
		"ready": {func(s *v1alpha1.LogicalUnitGroupSnapshot) { readyCut(s) }, true},
		"deleted": {func(s *v1alpha1.LogicalUnitGroupSnapshot) {
			s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
		}, true},
		"attempt": {func(s *v1alpha1.LogicalUnitGroupSnapshot) { s.Status.Attempt = 2 }, false},
	} {
		old, now := cutOf("x", -1), cutOf("x", -1)
		c.change(now)
		if got := cutChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: now}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
