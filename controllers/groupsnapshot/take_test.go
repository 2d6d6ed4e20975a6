package groupsnapshot

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/snapshot"
)

const oneAttempt = "get, begin 1, begin 1 and discard, prepare, hold, cut"

// A group snapshot is published when every member is complete on its pair, and then left alone.
func TestGroupIsPublishedWhenAllIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		for _, s := range w.snapshots() {
			if s.Spec.Cluster != "c" || s.Spec.Group != "group-1" || s.Spec.Name != s.Name || s.Labels[v1alpha1.LabelCluster] != "c" {
				t.Errorf("%+v", s)
			}
		}
		w.before = func(string) { time.Sleep(time.Millisecond) }
		w.look(r, "False Progressing", false, "3 of 3 LUNs are being copied")
		if got := w.calls(); got != oneAttempt {
			t.Errorf("%s", got)
		}
		q := w.pairs["q"].asked
		if len(q) != 2 || q[0].Uuid != "snap-1" || q[0].Name != "group-1-1" || q[0].SourceLunUuid != "source-1" || q[0].Labels[snapshot.LabelObject] != "group-1-1" || q[0].Labels[snapshot.LabelGroup] != "group-1" {
			t.Errorf("%+v", q)
		}
		// One that is being copied is enough for the group to wait.
		w.copied()
		w.pairs["q"].members["snap-1"].Stage = targetv1.GroupSnapshotMember_STAGE_COPYING
		if g := w.look(r, "False Progressing", false, "1 of 3 LUNs are being copied"); g.Annotations[v1alpha1.AnnotationMade] != "" {
			t.Fatal("published before all is complete")
		}
		w.copied()
		g := w.look(r, "True Ready", false, "the 3 snapshots are of one instant")
		if g.Annotations[v1alpha1.AnnotationMade] != "true" || g.Status.Attempt != 1 || g.Status.TakenAt.Unix() != 1e9+1 || g.Status.Held.Duration != 2*time.Millisecond {
			t.Errorf("%+v", g.Status)
		}
		w.calls()
		if again := w.look(r, "True Ready", false); again.ResourceVersion != g.ResourceVersion || w.calls() != "" {
			t.Error("a group that is published was touched")
		}
	})
}

// The number of an attempt is in the object before any pair hears of it.
func TestAttemptIsWrittenBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		w.pairs["q"].attempt = 6 // of a coordinator whose write was not lost, and whose status was
		w.before = func(call string) {
			if g := w.read(); strings.Contains(call, "begin") && g.Status.Attempt != 7 {
				t.Errorf("%s: the object has attempt %d", call, g.Status.Attempt)
			}
		}
		if g := w.look(r, "False Progressing", false); g.Status.Attempt != 7 {
			t.Errorf("attempt %d", g.Status.Attempt)
		}
	})
}

// A cut that fails at one pair is followed by the next attempt, without what the other pair has.
func TestFailedCutIsFollowedByTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		w.fails["q cut"] = []codes.Code{codes.FailedPrecondition}
		g := w.look(r, "False Progressing", false, "3 of 3")
		if got := w.calls(); g.Status.Attempt != 2 || got != oneAttempt+", begin 2, begin 2 and discard, prepare, hold, cut" {
			t.Errorf("attempt %d: %s", g.Status.Attempt, got)
		}
		for _, p := range w.pairs {
			for _, m := range p.members {
				if m.Snapshot.Attempt != 2 {
					t.Errorf("%+v", m)
				}
			}
		}
	})
	// A pass makes some attempts, the work queue the others.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		w.fails["q hold"] = slices.Repeat([]codes.Code{codes.Unavailable}, tries)
		began := time.Now()
		g := w.look(r, "False Progressing", true, "pair q: hold the members", "injected")
		if took := time.Since(began); g.Status.Attempt != tries || took < (tries-1)*50*time.Millisecond || took > (tries-1)*250*time.Millisecond {
			t.Errorf("%d attempts in %v", g.Status.Attempt, took)
		}
		w.look(r, "False Progressing", false, "3 of 3")
	})
}

// The condition says which pair, why, and what to do. What no retry fixes leaves nothing.
func TestFailuresAreExplained(t *testing.T) {
	for code, c := range map[codes.Code]struct {
		want  string
		again bool
		says  string
	}{
		codes.ResourceExhausted:  {"False NoRoom", false, "injected"},
		codes.InvalidArgument:    {"False Invalid", false, "injected"},
		codes.AlreadyExists:      {"False Invalid", false, "injected"},
		codes.NotFound:           {"False NoSource", false, "a source of this group snapshot is gone"},
		codes.FailedPrecondition: {"False Progressing", true, "the next attempt follows"},
		codes.Aborted:            {"False Progressing", true, "injected"},
		codes.Unavailable:        {"False PairDown", true, "kubectl gemel status"},
		codes.DeadlineExceeded:   {"False PairDown", true, "kubectl gemel status"},
		codes.Unimplemented:      {"False NotSupported", true, "pair q has a node of a release that knows no group snapshots: upgrade"},
		codes.Internal:           {"False NotConfirmed", true, "injected"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			r := w.placed()
			w.fails["q prepare"] = []codes.Code{code}
			w.look(r, c.want, c.again, "pair q: prepare: ", c.says)
			if n := len(w.pairs["p"].members); !c.again && n != 0 {
				t.Errorf("%v: %d snapshots are left at p", code, n)
			}
			w.look(r, "False Progressing", false, "3 of 3") // the next pass takes it
		})
	}
}

// Nothing begins at one pair while the other one is down.
func TestOneOfTwoPairsIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		w.fails["q get"] = []codes.Code{codes.Unavailable}
		if g := w.look(r, "False PairDown", true, "pair q: "); g.Status.Attempt != 0 || w.pairs["p"].attempt != 0 {
			t.Errorf("attempt %d begun", g.Status.Attempt)
		}
		w.look(r, "False Progressing", false, "3 of 3")
		w.copied()
		w.look(r, "True Ready", false)
	})
}

// A pair that hangs costs its groups a limited time, and other groups none.
func TestPairThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.placed()
		other := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "group-2", UID: "2"},
			Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: "c", Members: []v1alpha1.GroupSnapshotMember{{Source: "lun-0", Snapshot: "group-2-0"}}}}
		w.ok(w.c.Create(t.Context(), other))
		request := groupOf(t.Context(), &v1alpha1.LogicalUnitSnapshot{Spec: v1alpha1.LogicalUnitSnapshotSpec{Group: "group-2"}})[0]
		reconcile := func() {
			if _, err := r.Reconcile(t.Context(), request); err != nil {
				t.Error(err)
			}
		}
		reconcile()
		w.place()
		w.fails["q get"] = []codes.Code{codes.DeadlineExceeded}
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { w.look(r, "False PairDown", true, "pair q: ") })
		synctest.Wait()
		reconcile()
		if took := time.Since(began); took != 0 {
			t.Errorf("the other group waited for %v", took)
		}
		w.ok(w.c.Get(t.Context(), client.ObjectKeyFromObject(other), other))
		if other.Status.Attempt != 1 {
			t.Errorf("%+v", other.Status)
		}
		wg.Wait()
		if took := time.Since(began); took != lookLimit {
			t.Errorf("the group waited for %v", took)
		}
	})
}
