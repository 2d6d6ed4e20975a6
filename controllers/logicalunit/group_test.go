package logicalunit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/placement"
)

// ofClaim makes a LUN that of claim i of the application db.
func ofClaim(i int) func(*v1alpha1.LogicalUnit) {
	return func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Volume = &v1alpha1.VolumeInfo{Name: fmt.Sprintf("pvc-uid%d", i), Namespace: "team", PVC: fmt.Sprintf("d%d", i)}
	}
}

// grouped adds ten claims and their group to a fixture of near, and members that are placed
// already, with their homes.
func grouped(t *testing.T, f *fixture, spread string, homes ...string) {
	t.Helper()
	f.r.Groups = &groups.Finder{Claims: f.c, Objects: f.c}
	g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "db"}, Spec: v1alpha1.ConsistencyGroupSpec{Spread: spread}}
	g.Spec.Selector.MatchLabels = map[string]string{"app": "db"}
	objects := []client.Object{g}
	for i := range 10 {
		objects = append(objects, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("d%d", i), UID: types.UID(fmt.Sprintf("uid%d", i)), Labels: g.Spec.Selector.MatchLabels}})
	}
	for i, home := range homes {
		lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("member-%d", i+1)},
			Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Placement: &v1alpha1.Placement{Pair: "p", Home: home, UUID: uuidOfSource}}}
		ofClaim(i + 1)(lu)
		objects = append(objects, lu)
	}
	for _, o := range objects {
		if err := f.c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

func all(changes ...func(*v1alpha1.LogicalUnit)) func(*v1alpha1.LogicalUnit) {
	return func(lu *v1alpha1.LogicalUnit) {
		for _, f := range changes {
			f(lu)
		}
	}
}

func TestNewMemberOfAGroup(t *testing.T) {
	prefer := func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "a" }
	near1 := consumer("w1", "z1")
	for name, c := range map[string]struct {
		change            func(*v1alpha1.LogicalUnit)
		spread            string
		homes             []string
		pair, home, asked string
		says              string
	}{
		"spread before near":     {all(ofClaim(0), near1), "Nodes", []string{"a"}, "p", "b", "b", "node b has fewer members of ConsistencyGroup team/db (a: 1, b: 0) and becomes the home, although node a is on worker w1"},
		"near, if it is as good": {all(ofClaim(0), near1), "Nodes", []string{"a", "b"}, "p", "a", "a", "node a is on worker w1 and becomes the home"},
		"fewest members":         {ofClaim(0), "Nodes", []string{"a", "b"}, "q", "a", "a", "pair q has the fewest members of ConsistencyGroup team/db"},
		"preferredNode wins":     {all(ofClaim(0), near1, prefer), "Nodes", []string{"a"}, "p", "b", "a", "spec.preferredNode makes node a the home"},
		"spread is None":         {all(ofClaim(0), near1), "None", []string{"a"}, "p", "a", "a", "its node a is on worker w1 and becomes the home"},
		"no claim is known":      {near1, "Nodes", []string{"a"}, "p", "a", "a", "its node a is on worker w1 and becomes the home"},
		"claim of no group":      {all(ofClaim(11), near1), "Nodes", []string{"a"}, "p", "a", "a", "its node a is on worker w1 and becomes the home"},
		"the first of its group": {all(ofClaim(0), consumer("w2", "z1")), "Nodes", nil, "p", "b", "b", "(a: 0, b: 0); node b is on worker w2 and becomes the home"},
		"it is asked for again":  {all(ofClaim(1), near1), "Nodes", nil, "p", "a", "a", "(a: 0, b: 0)"},
		"spread is not set":      {ofClaim(0), "", []string{"a"}, "q", "a", "a", "fewest members"}, // the API server would default it
	} {
		f, _ := near(t, c.change)
		grouped(t, f, c.spread, c.homes...)
		lu, _, err := f.look()
		if err != nil || lu.Spec.Placement == nil || lu.Spec.Placement.Pair != c.pair || lu.Spec.Placement.Home != c.home || f.asked.GetPreferredNode() != c.asked ||
			!strings.Contains(lu.Annotations[v1alpha1.AnnotationPlaced], c.says) {
			t.Errorf("%s: %+v, %q, asked for %q, %v", name, lu.Spec.Placement, lu.Annotations[v1alpha1.AnnotationPlaced], f.asked.GetPreferredNode(), err)
		}
	}
}

// A LUN is placed without its group where the group cannot be read, and where two groups select its
// claim.
func TestLUNIsPlacedWithoutItsGroup(t *testing.T) {
	f, _ := near(t, all(ofClaim(0), consumer("w1", "z1")))
	grouped(t, f, "Nodes", "a")
	f.r.Groups.Claims = interceptor.NewClient(f.c.(client.WithWatch), interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return errors.New("injected by the test")
	}})
	if lu, _, err := f.look(); err != nil || lu.Spec.Placement.Home != "a" {
		t.Errorf("%+v, %v", lu.Spec.Placement, err)
	}
	f, _ = near(t, all(ofClaim(0), consumer("w1", "z1")))
	grouped(t, f, "Nodes", "a")
	g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "second"}}
	g.Spec.Selector.MatchLabels = map[string]string{"app": "db"}
	if err := f.c.Create(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if lu, _, err := f.look(); err != nil || lu.Spec.Placement.Home != "a" || strings.Contains(lu.Annotations[v1alpha1.AnnotationPlaced], "ConsistencyGroup") {
		t.Errorf("%+v, %v", lu.Spec.Placement, err)
	}
}

// The operator tells the pair the group of a LUN once, and tells it when the LUN leaves the group.
// It does not tell a pair that cannot keep groups, and a group that cannot be read changes nothing.
func TestPairKnowsTheGroup(t *testing.T) {
	f, _ := near(t, all(ofClaim(0), consumer("w1", "z1")))
	grouped(t, f, "Nodes", "a")
	told := func(want ...string) {
		t.Helper()
		lu, _, err := f.look()
		calls := slices.DeleteFunc(slices.Clone(f.calls), func(c string) bool { return !strings.HasPrefix(c, "modifygroup") })
		if err != nil || condition(lu, "Ready") != "True Ready" || !slices.Equal(calls, want) {
			t.Errorf("%v, %+v, %v", calls, lu.Status.Conditions, err)
		}
	}
	told() // made; a pair of a release before says nothing of groups
	f.lun.SpreadGroup = "none"
	f.fail["modifygroup team/db"] = codes.Unimplemented
	told("modifygroup team/db") // a node of a release before
	delete(f.fail, "modifygroup team/db")
	told("modifygroup team/db")
	told()
	real := f.r.Groups.Claims
	f.r.Groups.Claims = interceptor.NewClient(f.c.(client.WithWatch), interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("injected by the test")
	}})
	told()
	f.r.Groups.Claims = real
	if err := f.c.Delete(t.Context(), &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "db"}}); err != nil {
		t.Fatal(err)
	}
	told("modifygroup none")
	told()
	f.fail["modifygroup team/db"] = codes.Unavailable
	again := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "db"}}
	again.Spec.Selector.MatchLabels = map[string]string{"app": "db"}
	if err := f.c.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if lu, _, err := f.look(); err == nil || condition(lu, "Ready") != "False PairDown" {
		t.Errorf("%+v, %v", lu.Status.Conditions, err)
	}
}

// The claims of a StatefulSet are placed at the same time: each choice counts the ones before it,
// although the cache has none of them yet.
func TestMembersThatArePlacedAtOnceAreSpread(t *testing.T) {
	f, _ := near(t, consumer("w1", "z1"))
	grouped(t, f, "Nodes")
	f.r.Client = f.c // the one of near counts reads, for one reconcile at a time
	f.r.Groups.Objects = interceptor.NewClient(f.c.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, ok := list.(*v1alpha1.LogicalUnitList); ok {
			return nil // the cache lags behind
		}
		return c.List(ctx, list, opts...)
	}})
	var mu sync.Mutex
	homes := map[string]int{}
	var placing sync.WaitGroup
	for i := range 9 {
		lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("new-%d", i), UID: types.UID(fmt.Sprintf("01234567-89ab-cdef-0123-4567%08d", i))}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c"}}
		ofClaim(i)(lu)
		consumer("w1", "z1")(lu)
		if err := f.c.Create(t.Context(), lu); err != nil {
			t.Fatal(err)
		}
		placing.Go(func() {
			p := &pass{Reconciler: f.r, lu: lu}
			if err := p.place(t.Context()); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			homes[p.lu.Spec.Placement.Pair+p.lu.Spec.Placement.Home]++
		})
	}
	placing.Wait()
	if homes["pa"]+homes["pb"] != 9 || homes["pa"] < 4 || homes["pb"] < 4 {
		t.Errorf("%v", homes)
	}
}

func TestReservations(t *testing.T) {
	var r reservations
	db, web, now := types.NamespacedName{Name: "db"}, types.NamespacedName{Name: "web"}, time.Unix(1e9, 0)
	for _, name := range []string{"d0", "d1", "d2"} {
		r.add(db, placement.Member{Name: name, Home: "a"}, now)
	}
	r.add(web, placement.Member{Name: "w0"}, now)
	names := func(members []placement.Member) (out string) {
		for _, m := range members {
			out += m.Name + m.Home + " "
		}
		return out
	}
	if got := names(r.with(db, []placement.Member{{Name: "d1", Home: "b"}}, "d2", now)); got != "d1b d0a " {
		t.Errorf("the cache knows d1, and d2 is being placed: %s", got)
	}
	if got := names(r.with(db, nil, "d9", now.Add(reservedFor))); got != "d0a " {
		t.Errorf("d0 alone is reserved: %s", got)
	}
	if got := names(r.with(db, nil, "d9", now.Add(reservedFor+1))); got != "" || len(r.byGroup) != 1 {
		t.Errorf("a placement that was not written is forgotten: %s, %v", got, r.byGroup)
	}
}

// The home follows the pod only where the group stays spread.
func TestHomeOfAMemberFollowsItsHost(t *testing.T) {
	for name, c := range map[string]struct {
		spread string
		homes  []string
		near   string
	}{
		"alone":              {"Nodes", nil, "a"},
		"the group needs it": {"Nodes", []string{"a"}, ""},
		"one of three":       {"Nodes", []string{"a", "b"}, "a"},
		"spread is None":     {"None", []string{"a"}, "a"},
		"not spread anyway":  {"Nodes", []string{"b", "b", "b"}, "a"},
		"two and two":        {"Nodes", []string{"a", "a", "b"}, ""},
	} {
		f, _ := near(t, all(ofClaim(0), func(lu *v1alpha1.LogicalUnit) {
			lu.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
			lu.Spec.Placement = &v1alpha1.Placement{Pair: "p", Home: "b", UUID: string(lu.UID)}
		}))
		grouped(t, f, c.spread, c.homes...)
		p := &pass{Reconciler: f.r, lu: &v1alpha1.LogicalUnit{}}
		if err := f.c.Get(t.Context(), client.ObjectKey{Name: "lun-1"}, p.lu); err != nil {
			t.Fatal(err)
		}
		if got := p.nearHost(t.Context(), &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}).GetNode(); got != c.near {
			t.Errorf("%s: near node %q", name, got)
		}
	}
}
