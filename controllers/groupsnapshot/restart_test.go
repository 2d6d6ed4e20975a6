package groupsnapshot

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// finish runs an operator until the group is published.
func (w *world) finish() *v1alpha1.LogicalUnitGroupSnapshot {
	w.Helper()
	r := w.reconciler()
	for range 20 {
		if _, err := w.pass(r); err != nil {
			w.Fatal(err)
		}
		if g := w.read(); object.IsMade(g) && g.Status.TakenAt != nil {
			return g
		}
		w.place()
		w.copied()
	}
	w.Fatal("the group is not published")
	return nil
}

// whole fails unless every member is complete, all of one attempt.
func (w *world) whole() {
	w.Helper()
	seen, n := map[uint64]bool{}, 0
	for _, p := range w.pairs {
		for _, m := range p.members {
			if m.Stage == targetv1.GroupSnapshotMember_STAGE_READY {
				seen[m.Snapshot.Attempt], n = true, n+1
			}
		}
	}
	if n != w.luns || len(seen) != 1 {
		w.Errorf("%d members, of attempts %v", n, seen)
	}
}

// forBoth runs a test in a world without a striped volume, and in one with it.
func forBoth(t *testing.T, test func(t *testing.T, newWorld func(*testing.T) *world)) {
	for name, w := range map[string]func(*testing.T) *world{"plain": newWorld, "striped": stripedWorld} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { test(t, w) }) })
	}
}

// upTo runs an operator that ends at a step; false if it published the group before.
func (w *world) upTo(step int) bool {
	w.Helper()
	w.dies = w.steps + step
	defer func() { w.dies = 0 }()
	r := w.reconciler()
	for range 20 {
		_, _ = w.pass(r)
		if w.steps >= w.dies {
			return true
		}
		if g := w.read(); object.IsMade(g) && g.Status.TakenAt != nil {
			return false
		}
		w.place()
		w.copied()
	}
	w.Fatal("the operator does not come to an end")
	return false
}

// The operator ends before any of its writes and calls, and the next one publishes a whole set.
func TestRestartAtEachStep(t *testing.T) {
	forBoth(t, func(t *testing.T, newWorld func(*testing.T) *world) {
		for step := 1; ; step++ {
			w := newWorld(t)
			ended := w.upTo(step)
			w.finish()
			w.whole()
			if !ended {
				if step < 15 {
					t.Errorf("only %d steps", step)
				}
				return
			}
		}
	})
}

// The group is deleted after the operator has ended at any step: nothing is left, and no pair takes
// anything of it any more.
func TestDeletionAtEachStep(t *testing.T) {
	forBoth(t, func(t *testing.T, newWorld func(*testing.T) *world) {
		for step := 2; ; step++ { // the first one is the finalizer
			w := newWorld(t)
			ended := w.upTo(step)
			begun := w.read().Status.Attempt > 0
			w.destroy()
			r := w.reconciler()
			for range 10 {
				if _, err := w.pass(r); err != nil {
					t.Fatal(err)
				}
				w.place()
			}
			if w.read() != nil || len(w.snapshots()) != 0 {
				t.Fatalf("step %d: %+v, %d objects", step, w.read(), len(w.snapshots()))
			}
			for name, p := range w.pairs {
				if len(p.members) != 0 || p.final != begun {
					t.Errorf("step %d: pair %s: %d members, final %v", step, name, len(p.members), p.final)
				}
			}
			if !ended {
				return
			}
		}
	})
}

// A set that is whole is adopted; one that is not is removed.
func TestAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		w.lost["p cut"], w.lost["q cut"] = true, true
		g := w.look(r, "False Progressing", false, "3 of 3")
		if got := w.calls(); g.Status.Attempt != 2 || got != oneAttempt+", begin 2" {
			t.Errorf("attempt %d: %s", g.Status.Attempt, got)
		}
		w.copied()
		w.look(r, "True Ready", false)
		w.whole()
	})
	// Another operator finds the set of a pair that is not all of it.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.placed()
		w.fails["q cut"] = slices.Repeat([]codes.Code{codes.Internal}, tries)
		w.look(w.reconciler(), "False NotConfirmed", true)
		w.copied()
		w.calls()
		w.look(w.reconciler(), "False Progressing", false, "3 of 3")
		if got := w.calls(); got != strings.ReplaceAll(oneAttempt, "1", "6") {
			t.Error(got)
		}
	})
}

// An operator that was deposed calls no pair after another one has written the object, and
// publishes nothing.
func TestDeposedOperator(t *testing.T) {
	for _, state := range []string{"nothing", "ready"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			r := w.placed()
			if state == "ready" {
				w.look(r, "False Progressing", false)
				w.copied()
			}
			w.calls()
			w.before = func(call string) {
				if call == "q get" {
					g := w.read()
					g.Status.Attempt = 9
					w.ok(w.c.Status().Update(t.Context(), g))
				}
			}
			if _, err := w.pass(r); err != nil {
				t.Fatal(err)
			}
			if g := w.read(); object.IsMade(g) || g.Status.Attempt != 9 {
				t.Errorf("%s: %+v", state, g)
			}
			if got := w.calls(); got != "get" {
				t.Errorf("%s: %s", state, got)
			}
		})
	}
}
