package consistencygroup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	envtest.Main(m, "../../config/crd/bases")
}

// pairs stands for every pair: the LUNs that it has, and what it was asked for.
type pairs struct {
	pairconn.Pair
	luns  map[string]*targetv1.LUN // by UUID
	phase targetv1.Phase
	asked []string // UUID and new home
	fail  error
}

func (p *pairs) Client(context.Context, string) (pairconn.Pair, error) { return p, nil }

func (p *pairs) Serving(context.Context) (*targetv1.Status, error) {
	return &targetv1.Status{Phase: p.phase}, p.fail
}

func (p *pairs) GetLUN(_ context.Context, q *targetv1.GetLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	return p.luns[q.Uuid], p.fail
}

func (p *pairs) ModifyLUN(_ context.Context, q *targetv1.ModifyLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	if q.PinnedNode != "" || q.WriteCache != 0 {
		return nil, errors.New("only the home is changed")
	}
	p.asked = append(p.asked, q.Uuid+" "+q.PreferredNode)
	p.luns[q.Uuid].PreferredNode = q.PreferredNode
	return p.luns[q.Uuid], nil
}

// world is a namespace with claims, volumes, LUNs and groups in a fake API server.
type world struct {
	*testing.T
	*pairs
	c     client.Client
	r     *Reconciler
	rec   *events.FakeRecorder
	start time.Time
}

func setup(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, pairs: &pairs{luns: map[string]*targetv1.LUN{}, phase: targetv1.Phase_PHASE_IN_SYNC}, rec: events.NewFakeRecorder(100), start: time.Unix(1e9, 0)}
	w.c = fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(&v1alpha1.ConsistencyGroup{}).WithObjects(objects...).
		WithIndex(&corev1.PersistentVolume{}, groups.VolumeIndex, groups.VolumeKeys).WithIndex(&v1alpha1.LogicalUnit{}, groups.UnitIndex, groups.UnitKeys).Build()
	w.restart()
	w.create(&v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: v1alpha1.TargetPairStatus{Ownership: &v1alpha1.OwnershipStatus{Mode: v1alpha1.BalancingAuto},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionInSync, Status: metav1.ConditionTrue}}}})
	return w
}

// restart makes a new reconciler, which remembers nothing.
func (w *world) restart() {
	w.r = &Reconciler{Client: w.c, Live: w.c, Pairs: w, Groups: &groups.Finder{Claims: w.c, Objects: w.c}, Events: w.rec, Now: func() time.Time { return w.start }}
}

func (w *world) create(objects ...client.Object) {
	w.Helper()
	for _, o := range objects {
		if err := w.c.Create(w.Context(), o); err != nil {
			w.Fatal(err)
		}
	}
}

func change[T client.Object](w *world, o T, name string, f func(T)) {
	w.Helper()
	key := client.ObjectKey{Name: name}
	if _, ok := any(o).(*v1alpha1.ConsistencyGroup); ok {
		key.Namespace = "team"
	}
	if err := w.c.Get(w.Context(), key, o); err != nil {
		w.Fatal(err)
	}
	f(o)
	if err := w.c.Update(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

func (w *world) unit(name string, f func(*v1alpha1.LogicalUnit)) {
	w.Helper()
	change(w, &v1alpha1.LogicalUnit{}, name, f)
}

func (w *world) pair(f func(*v1alpha1.TargetPair)) {
	w.Helper()
	change(w, &v1alpha1.TargetPair{}, "p", f)
}

// claim creates a claim of the application db.
func (w *world) claim(name string) {
	w.Helper()
	w.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "db"}}})
}

func volume(claim, driver string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim}, Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "team", Name: claim, UID: types.UID("uid-" + claim)}}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "g-" + claim}
	return pv
}

// member creates a claim with a LUN whose home is a node of the pair p.
func (w *world) member(name, home string, change ...func(*v1alpha1.LogicalUnit)) {
	w.Helper()
	w.claim(name)
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "g-" + name, UID: types.UID("lun-" + name), Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
		Spec:   v1alpha1.LogicalUnitSpec{Cluster: "main", Placement: &v1alpha1.Placement{Pair: "p", Pool: "fast", UUID: "uuid-" + name}},
		Status: v1alpha1.LogicalUnitStatus{Owner: home, PreferredNode: home}}
	for _, f := range change {
		f(lu)
	}
	w.luns["uuid-"+name] = &targetv1.LUN{Uuid: "uuid-" + name, Owner: lu.Status.Owner, PreferredNode: lu.Status.PreferredNode}
	w.create(volume(name, v1alpha1.DriverName), lu)
}

// arrive makes the pair and the LogicalUnit show a LUN at its new home.
func (w *world) arrive(name, home string) {
	w.Helper()
	w.unit("g-"+name, func(lu *v1alpha1.LogicalUnit) { lu.Status.Owner, lu.Status.PreferredNode = home, home })
	w.luns["uuid-"+name].Owner, w.luns["uuid-"+name].PreferredNode = home, home
}

func (w *world) group(name string, change ...func(*v1alpha1.ConsistencyGroup)) {
	w.Helper()
	g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Generation: 1}, Spec: v1alpha1.ConsistencyGroupSpec{Spread: v1alpha1.SpreadNodes}}
	g.Spec.Selector.MatchLabels = map[string]string{"app": "db"}
	for _, f := range change {
		f(g)
	}
	w.create(g)
}

// look reconciles a group once; ready is the status and reason of its condition, with the message.
func (w *world) look(name string) (g *v1alpha1.ConsistencyGroup, ready string) {
	w.Helper()
	key := client.ObjectKey{Namespace: "team", Name: name}
	if res, err := w.r.Reconcile(w.Context(), ctrl.Request{NamespacedName: key}); err != nil || res.RequeueAfter == 0 {
		w.Fatalf("%+v, %v", res, err)
	}
	g = &v1alpha1.ConsistencyGroup{}
	if err := w.c.Get(w.Context(), key, g); err != nil {
		w.Fatal(err)
	}
	x := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady)
	if x == nil || x.ObservedGeneration != g.Generation || g.Status.ObservedGeneration != g.Generation {
		w.Fatalf("%+v", g.Status)
	}
	return g, fmt.Sprintf("%s %s: %s", x.Status, x.Reason, x.Message)
}

// told are the events since the last call.
func (w *world) told() (out []string) {
	for {
		select {
		case e := <-w.rec.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

func TestConditionsOfAGroup(t *testing.T) {
	for name, c := range map[string]struct {
		world func(*world)
		group func(*v1alpha1.ConsistencyGroup)
		ready string
		event string
	}{
		"ready":          {func(w *world) { w.member("d0", "a"); w.member("d1", "b"); w.claim("d2") }, nil, "True Ready: 2 of 3 claims are bound, and their LUNs are in StorageCluster main", "Normal Ready"},
		"no claims":      {func(w *world) {}, nil, "False NoClaims: spec.selector selects no claim of namespace team", "Warning NoClaims"},
		"none is bound":  {func(w *world) { w.claim("d0") }, nil, "False Progressing: none of the 1 claims is bound yet", ""},
		"being created":  {func(w *world) { w.member("d0", "a", func(lu *v1alpha1.LogicalUnit) { lu.Annotations = nil }) }, nil, "False Progressing: the LUN of claim d0 is being created", ""},
		"not placed":     {func(w *world) { w.member("d0", "a", func(lu *v1alpha1.LogicalUnit) { lu.Spec.Placement = nil }) }, nil, "False Progressing: the LUN of claim d0 is being created", ""},
		"LUN is missing": {func(w *world) { w.claim("d0"); w.create(volume("d0", v1alpha1.DriverName)) }, nil, "False Progressing: claim d0 is bound, but its LogicalUnit does not exist", ""},
		"another driver": {func(w *world) { w.member("d0", "a"); w.claim("d1"); w.create(volume("d1", "x.example.com")) }, nil, "False Invalid: claim d1 is bound to PersistentVolume pv-d1 of driver x.example.com, which is not a volume of Gemel", "Warning Invalid"},
		"several": {func(w *world) {
			w.member("d0", "a")
			w.member("d1", "b", func(lu *v1alpha1.LogicalUnit) { lu.Spec.Cluster = "other" })
		}, nil, "False SeveralClusters: the LUNs of the claims are in several StorageClusters (claim d0 in main, claim d1 in other)", "Warning SeveralClusters"},
		"empty selector":  {func(w *world) { w.member("d0", "a") }, func(g *v1alpha1.ConsistencyGroup) { g.Spec.Selector = metav1.LabelSelector{} }, "False Invalid: spec.selector is empty", "Warning Invalid"},
		"broken selector": {func(w *world) { w.member("d0", "a") }, func(g *v1alpha1.ConsistencyGroup) { g.Spec.Selector.MatchLabels = map[string]string{"app": "?"} }, "False Invalid: spec.selector: ", "Warning Invalid"},
	} {
		w := setup(t)
		c.world(w)
		if c.group == nil {
			c.group = func(*v1alpha1.ConsistencyGroup) {}
		}
		w.group("g", c.group)
		g, ready := w.look("g")
		if !strings.HasPrefix(ready, c.ready) || len(g.Finalizers) != 0 {
			t.Errorf("%s: %s", name, ready)
		}
		if e := w.told(); len(e) != min(len(c.event), 1) || len(e) == 1 && !strings.HasPrefix(e[0], c.event) {
			t.Errorf("%s: %q", name, e)
		}
		// Nothing has changed: nothing is written or told.
		again, _ := w.look("g")
		if e := w.told(); again.ResourceVersion != g.ResourceVersion || len(e) != 0 {
			t.Errorf("%s: another reconcile writes, or tells %q", name, e)
		}
	}
}

// A claim that two groups select is named in both groups, with both; no LUN moves. Without the
// other group all is well again.
func TestClaimOfTwoGroups(t *testing.T) {
	w := setup(t)
	w.member("d0", "a")
	w.member("d1", "a")
	w.group("first")
	w.group("second", func(g *v1alpha1.ConsistencyGroup) {
		g.Spec.Selector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
	})
	w.group("broken", func(g *v1alpha1.ConsistencyGroup) { g.Spec.Selector = metav1.LabelSelector{} }) // selects nothing
	for _, name := range []string{"first", "second"} {
		g, ready := w.look(name)
		if !strings.HasPrefix(ready, "False Conflict: claim d0 is selected by the ConsistencyGroups first and second, and 1 more claims are selected twice: ") || g.Status.Claims != 2 || len(g.Status.Members) != 2 {
			t.Errorf("%s: %s, %+v", name, ready, g.Status)
		}
	}
	if e := w.told(); len(e) != 2 || !strings.HasPrefix(e[1], "Warning Conflict claim d0") || len(w.asked) != 0 {
		t.Errorf("%q, %v", e, w.asked)
	}
	if err := w.c.Delete(t.Context(), &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "second"}}); err != nil {
		t.Fatal(err)
	}
	if _, ready := w.look("first"); !strings.HasPrefix(ready, "True Ready") || len(w.asked) != 1 {
		t.Errorf("%s, %v", ready, w.asked)
	}
}

func TestMembersOfAGroup(t *testing.T) {
	w := setup(t)
	w.member("d0", "a")
	w.member("d1", "b", func(lu *v1alpha1.LogicalUnit) { lu.Status.Owner = "a" })
	w.member("d2", "b", func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode = "b" })
	w.claim("d3")
	w.group("g")
	g, _ := w.look("g")
	spread := "spread over the nodes of pair p (a: 1, b: 2)"
	want := []v1alpha1.GroupMember{{Claim: "d0", LogicalUnit: "g-d0", Pair: "p", Pool: "fast", Node: "a", Home: "a", Reason: spread},
		{Claim: "d1", LogicalUnit: "g-d1", Pair: "p", Pool: "fast", Node: "a", Home: "b", Reason: spread},
		{Claim: "d2", LogicalUnit: "g-d2", Pair: "p", Pool: "fast", Node: "b", Home: "b", Reason: "the LUN is pinned to node b, and the group does not change that"}}
	if g.Status.Claims != 4 || g.Status.Balance != "a: 1, b: 2" || fmt.Sprint(g.Status.Members) != fmt.Sprint(want) || g.Status.OmittedMembers != 0 {
		t.Errorf("%+v", g.Status)
	}
	for i := range v1alpha1.GroupMembersShown {
		w.member(fmt.Sprintf("e%03d", i), []string{"a", "b"}[i%2])
	}
	g, _ = w.look("g")
	if g.Status.Claims != 260 || g.Status.OmittedMembers != 3 || len(g.Status.Members) != v1alpha1.GroupMembersShown || g.Status.Members[255].Claim != "e252" || g.Status.Balance != "a: 129, b: 130" {
		t.Errorf("%d claims, %d omitted, %d members, %s", g.Status.Claims, g.Status.OmittedMembers, len(g.Status.Members), g.Status.Balance)
	}
}
