package consistencygroup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// One home changes at a time: the next one when the LUN is where it belongs. Then nothing changes
// any more.
func TestGroupIsEvenedOutOneByOne(t *testing.T) {
	w := setup(t)
	for i := range 5 {
		w.member(fmt.Sprintf("d%d", i), "a")
	}
	w.group("g")
	g, ready := w.look("g")
	if fmt.Sprint(w.asked) != "[uuid-d4 b]" || g.Status.Balance != "a: 4, b: 1" || !strings.HasSuffix(ready, "; the home of claim d4 changes") {
		t.Fatalf("%v, %s, %s", w.asked, g.Status.Balance, ready)
	}
	if e := w.told(); len(e) != 2 || e[0] != "Normal Spread the home of claim d4 (LogicalUnit g-d4) changes from node a to node b of pair p: 5 members of the group have their home on node a of pair p, and 0 on node b" {
		t.Errorf("%q", e)
	}
	// The LUN is on its way, and its LogicalUnit does not even have the new home yet.
	for range 3 {
		if _, ready := w.look("g"); len(w.asked) != 1 || !strings.HasSuffix(ready, "; pair p is to be evened out, but the LUN of claim d4 is not at home") {
			t.Fatalf("%v, %s", w.asked, ready)
		}
	}
	w.arrive("d4", "b")
	w.look("g")
	w.arrive("d3", "b")
	g, ready = w.look("g")
	if fmt.Sprint(w.asked) != "[uuid-d4 b uuid-d3 b]" || g.Status.Balance != "a: 3, b: 2" || ready != "True Ready: 5 of 5 claims are bound, and their LUNs are in StorageCluster main" {
		t.Fatalf("%v, %s, %s", w.asked, g.Status.Balance, ready)
	}
	w.told()
	again, _ := w.look("g")
	if e := w.told(); len(w.asked) != 2 || len(e) != 0 || again.ResourceVersion != g.ResourceVersion {
		t.Errorf("%v, %q", w.asked, e)
	}
	// A new member moves none of the others.
	w.member("c0", "b")
	if g, _ := w.look("g"); len(w.asked) != 2 || g.Status.Balance != "a: 3, b: 3" {
		t.Errorf("%v, %s", w.asked, g.Status.Balance)
	}
}

// The operator ends after the request, and its LogicalUnit does not have the new home yet: the LUN
// is not moved again, and no second one with it.
func TestCrashAfterAHomeWasSet(t *testing.T) {
	w := setup(t)
	w.member("d0", "a")
	w.member("d1", "a")
	w.group("g")
	w.look("g")
	w.told()
	w.restart()
	g, _ := w.look("g")
	if e := w.told(); len(w.asked) != 1 || len(e) != 0 || g.Status.Balance != "a: 1, b: 1" {
		t.Errorf("%v, %q, %s", w.asked, e, g.Status.Balance)
	}
	// A home that the LogicalUnit does not get counts for some time only: another reason has moved
	// the LUN back.
	w.luns["uuid-d1"].PreferredNode = "a"
	w.start = w.start.Add(remembered + 1)
	if w.look("g"); len(w.asked) != 2 {
		t.Errorf("%v", w.asked)
	}
}

// What speaks against a change of a home, and what is said about it.
func TestGroupWaits(t *testing.T) {
	owned := func(name, node string) func(*world) {
		return func(w *world) { w.unit("g-"+name, func(lu *v1alpha1.LogicalUnit) { lu.Status.Owner = node }) }
	}
	pair := func(f func(*v1alpha1.TargetPair)) func(*world) { return func(w *world) { w.pair(f) } }
	for name, c := range map[string]struct {
		world func(*world)
		says  string // nothing: a home changes
	}{
		"nothing":              {func(*world) {}, ""},
		"not in sync":          {pair(func(p *v1alpha1.TargetPair) { p.Status.Conditions[0].Status = metav1.ConditionFalse }), "its nodes are not in sync"},
		"not in sync any more": {func(w *world) { w.phase = targetv1.Phase_PHASE_ALONE }, "its nodes are not in sync"},
		"Observe":              {pair(func(p *v1alpha1.TargetPair) { p.Status.Ownership.Mode = v1alpha1.BalancingObserve }), "spec.balancing.mode of its StorageCluster is Observe"},
		"release before":       {pair(func(p *v1alpha1.TargetPair) { p.Status.Ownership = nil }), "of a release that does not move LUNs"},
		"drained":              {pair(func(p *v1alpha1.TargetPair) { p.Status.Ownership.DrainedNode = "b" }), "node b is drained"},
		"not at home":          {func(w *world) { w.member("c0", "b"); owned("c0", "a")(w) }, "the LUN of claim c0 is not at home"},
		"is there already":     {owned("d2", "b"), ""},
		"pinned just now":      {func(w *world) { w.luns["uuid-d2"].PinnedNode = "a" }, "the LUN of claim d2 is pinned"},
		"pinned no more":       {func(w *world) { w.luns["uuid-d2"].PinnedNode = v1alpha1.NoPin }, ""},
		"transferred just now": {func(w *world) { w.luns["uuid-d2"].HeldUntil = timestamppb.New(w.start.Add(time.Second)) }, "a transfer by a person holds the LUN of claim d2"},
		"home has changed":     {func(w *world) { w.luns["uuid-d2"].PreferredNode = "" }, "the home of claim d2 has just changed"},
		"pair does not answer": {func(w *world) { w.fail = errors.New("injected by the test") }, "it did not answer: get the LUN"},
		"spec has changed": {func(w *world) {
			w.r.Live = interceptor.NewClient(w.c.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				err := c.Get(ctx, key, o, opts...)
				o.SetGeneration(o.GetGeneration() + 1)
				return err
			}})
		}, "the LogicalUnit of claim d2 cannot be confirmed"},
	} {
		w := setup(t)
		for i := range 3 {
			w.member(fmt.Sprintf("d%d", i), "a")
		}
		w.group("g")
		c.world(w)
		_, ready := w.look("g")
		if (len(w.asked) == 0) != (c.says != "") || c.says != "" && !strings.Contains(ready, "; pair p is to be evened out, but ") || !strings.Contains(ready, c.says) || !strings.HasPrefix(ready, "True Ready") {
			t.Errorf("%s: %v, %s", name, w.asked, ready)
		}
	}
}

func TestWhatAGroupNeverMoves(t *testing.T) {
	pin := func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode = "a" }
	prefer := func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "a" }
	for name, c := range map[string]struct {
		members [3]func(*v1alpha1.LogicalUnit)
		spread  string
		want    string
		says    string
	}{
		"pinned":             {[3]func(*v1alpha1.LogicalUnit){2: pin}, "Nodes", "[uuid-d1 b]", ""},
		"preferredNode":      {[3]func(*v1alpha1.LogicalUnit){2: prefer, 1: pin}, "Nodes", "[uuid-d0 b]", ""},
		"all of them":        {[3]func(*v1alpha1.LogicalUnit){prefer, pin, prefer}, "Nodes", "[]", "; pair p cannot be evened out (a: 3, b: 0)"},
		"anything with None": {[3]func(*v1alpha1.LogicalUnit){}, "None", "[]", "StorageCluster main"},
	} {
		w := setup(t)
		for i, f := range c.members {
			if f == nil {
				f = func(*v1alpha1.LogicalUnit) {}
			}
			w.member(fmt.Sprintf("d%d", i), "a", f)
		}
		w.group("g", func(g *v1alpha1.ConsistencyGroup) { g.Spec.Spread = c.spread })
		_, ready := w.look("g")
		if fmt.Sprint(w.asked) != c.want || !strings.Contains(ready, c.says) {
			t.Errorf("%s: %v, %s", name, w.asked, ready)
		}
	}
}

// A group that is deleted, or not ready, changes nothing about its LUNs.
func TestGroupThatIsGoneMovesNothing(t *testing.T) {
	w := setup(t)
	w.member("d0", "a")
	w.member("d1", "a")
	w.member("d2", "b", func(lu *v1alpha1.LogicalUnit) { lu.Annotations = nil })
	w.member("d3", "a")
	w.group("g")
	if _, ready := w.look("g"); len(w.asked) != 0 || !strings.HasPrefix(ready, "False Progressing") {
		t.Errorf("%v, %s", w.asked, ready)
	}
	key := client.ObjectKey{Namespace: "team", Name: "g"}
	change(w, &v1alpha1.ConsistencyGroup{}, "g", func(g *v1alpha1.ConsistencyGroup) { g.Finalizers = []string{"example.com/x"} })
	w.unit("g-d2", func(lu *v1alpha1.LogicalUnit) { lu.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"} })
	w.unit("g-d2", func(lu *v1alpha1.LogicalUnit) { lu.Status.Owner, lu.Status.PreferredNode = "a", "a" })
	g := &v1alpha1.ConsistencyGroup{}
	if err := errors.Join(w.c.Get(t.Context(), key, g), w.c.Delete(t.Context(), g)); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"being deleted", "gone"} {
		if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil || len(w.asked) != 0 {
			t.Errorf("%s: %v, %v", what, err, w.asked)
		}
		if what == "being deleted" {
			change(w, &v1alpha1.ConsistencyGroup{}, "g", func(g *v1alpha1.ConsistencyGroup) { g.Finalizers = nil })
		}
	}
}
