package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m, "../../config/crd/bases") }

type world struct {
	t    *testing.T
	ctx  context.Context
	c    client.Client
	as   *rest.Config // the operator's, with its RBAC rules
	r    *Reconciler
	rec  *events.FakeRecorder
	name string
}

func newWorld(t *testing.T, name string, pairs int32) *world {
	t.Helper()
	cfg := envtest.Config(t)
	cfg.QPS = -1
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, c: c, name: name, rec: events.NewFakeRecorder(1000)}
	w.as = envtest.Operator(t, cfg, envtest.Namespace(t, cfg), "../../config/rbac")
	own, err := client.New(w.as, client.Options{Scheme: s})
	w.ok(err)
	for i := range 2 {
		n := worker(fmt.Sprintf("plain-%d", i))
		w.ok(client.IgnoreAlreadyExists(c.Create(ctx, &n)))
	}
	w.r = &Reconciler{Client: own, Image: "gemel:1", Events: w.rec}
	w.ok(c.Create(ctx, &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.StorageClusterSpec{Pairs: pairs,
		Pools: []v1alpha1.Pool{{Name: "default", StorageClassName: "disks", Size: resource.MustParse("10Gi")}}}}))
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reconcile() error {
	_, err := w.r.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
	return err
}

func (w *world) step() {
	w.t.Helper()
	w.ok(w.reconcile())
}

func (w *world) get() *v1alpha1.StorageCluster {
	w.t.Helper()
	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	return c
}

// pair simulates the reconciler of pairs: it sets the number of LUNs and InSync.
func (w *world) pair(i int, luns int32, inSync bool) {
	w.t.Helper()
	p := &v1alpha1.TargetPair{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: v1alpha1.PairName(w.name, i)}, p))
	if controllerutil.AddFinalizer(p, v1alpha1.Finalizer) {
		w.ok(w.c.Update(w.ctx, p))
	}
	q := resource.MustParse("10Gi")
	p.Status.LogicalUnits, p.Status.Capacity, p.Status.Free = luns, &q, &q
	for kind, ok := range map[string]bool{v1alpha1.ConditionReady: true, v1alpha1.ConditionInSync: inSync, v1alpha1.ConditionUpToDate: true} {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, ObservedGeneration: p.Generation}
		if !ok {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonDegraded, "node b is away"
		}
		meta.SetStatusCondition(&p.Status.Conditions, c)
	}
	w.ok(w.c.Status().Update(w.ctx, p))
}

// there lists the pairs; those being deleted have a mark.
func (w *world) there() (out []string) {
	w.t.Helper()
	l := &v1alpha1.TargetPairList{}
	w.ok(w.c.List(w.ctx, l))
	for _, p := range l.Items {
		if p.Spec.Cluster != w.name {
			continue
		}
		name := strings.TrimPrefix(p.Name, w.name+"-")
		if !p.DeletionTimestamp.IsZero() {
			name += "!"
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// sawEvent reports whether an event contains a text, and consumes the events up to that one.
func (w *world) sawEvent(text string) bool {
	for {
		select {
		case e := <-w.rec.Events:
			if strings.Contains(e, text) {
				return true
			}
		default:
			return false
		}
	}
}

// count returns the number of events that contain a text.
func (w *world) count(text string) (n int) {
	for w.sawEvent(text) {
		n++
	}
	return n
}

func TestCreatesPairsAndSumsThemUp(t *testing.T) {
	w := newWorld(t, "sums", 2)
	w.step()
	if got := w.there(); !slices.Equal(got, []string{"p0", "p1"}) {
		t.Fatalf("%v", got)
	}
	if c := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Status != metav1.ConditionFalse {
		t.Fatalf("%+v", c)
	}
	w.pair(0, 3, true)
	w.pair(1, 4, false)
	w.step()
	s := w.get().Status
	if s.Pairs != 2 || s.ReadyPairs != 1 || s.LogicalUnits != 7 || s.Capacity.String() != "20Gi" || s.Image != "gemel:1" {
		t.Fatalf("%+v", s)
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonDegraded || !strings.Contains(c.Message, "node b is away") {
		t.Fatalf("%+v", c)
	}
	before := w.get().ResourceVersion
	w.step()
	if w.get().ResourceVersion != before {
		t.Error("the status was written without a change")
	}
}

// Each pool is summed up over the pairs that have it; the cluster is the sum of its pools.
func TestSumsUpPools(t *testing.T) {
	w := newWorld(t, "pools", 2)
	c := w.get()
	c.Spec.Pools = append(c.Spec.Pools, v1alpha1.Pool{Name: "fast", StorageClassName: "flash", Size: resource.MustParse("5Gi")},
		v1alpha1.Pool{Name: "new", StorageClassName: "disks", Size: resource.MustParse("5Gi")})
	w.ok(w.c.Update(w.ctx, c))
	w.step()
	q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
	for i := range 2 {
		w.pair(i, 0, true)
		p := &v1alpha1.TargetPair{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: v1alpha1.PairName(w.name, i)}, p))
		p.Status.Pools = []v1alpha1.PoolStatus{{Name: "default", Capacity: q("10Gi"), Free: q("9Gi"), Promised: q("7Gi"), Promisable: q("20Gi")}, {Name: "fast", Capacity: q("5Gi"), Free: q("1Gi")}}[:2-i]
		reason := []string{v1alpha1.ReasonNearFull, v1alpha1.ReasonOvercommitted}[i]
		meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionSpaceAvailable, Status: metav1.ConditionFalse, Reason: reason, Message: "it is " + reason})
		w.ok(w.c.Status().Update(w.ctx, p))
	}
	w.step()
	got := ""
	for _, p := range w.get().Status.Pools {
		got += p.Name + " " + p.Free.String() + "/" + p.Capacity.String() + " "
		if p.Promised != nil {
			got += p.Promised.String() + "/" + p.Promisable.String() + " "
		}
	}
	if got != "default 18Gi/20Gi 14Gi/40Gi fast 1Gi/5Gi new 0/0 " {
		t.Error(got)
	}
	if c := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionSpaceAvailable); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonNearFull ||
		c.Message != "pools-p0: it is NearFull; pools-p1: it is Overcommitted" {
		t.Errorf("%+v", c)
	}
}

func TestScalingDownKeepsPairsWithLUNs(t *testing.T) {
	w := newWorld(t, "scales", 2)
	w.step()
	w.pair(0, 0, true)
	w.pair(1, 1, true)
	c := w.get()
	c.Spec.Pairs = 3
	w.ok(w.c.Update(w.ctx, c))
	w.step()
	if got := w.there(); len(got) != 3 {
		t.Fatalf("%v", got)
	}
	w.pair(2, 0, true)
	c = w.get()
	c.Spec.Pairs, c.Spec.AllowScaleDown = 1, true
	w.ok(w.c.Update(w.ctx, c))
	w.step()
	if got := w.there(); !slices.Equal(got, []string{"p0", "p1", "p2!"}) || !w.sawEvent("has 1 LUNs and is not removed") {
		t.Fatalf("%v", got)
	}
}

func TestDeletionWaitsForPairs(t *testing.T) {
	w := newWorld(t, "goes", 2)
	w.step()
	w.pair(0, 0, true)
	w.pair(1, 1, true)
	w.ok(w.c.Delete(w.ctx, w.get()))
	w.step()
	if got := w.there(); !slices.Equal(got, []string{"p0!", "p1"}) || !w.sawEvent("the StorageCluster has 2 pairs") {
		t.Fatalf("%v", got)
	}
	for i := range 2 {
		w.pair(i, 0, true)
		w.step()
		p := &v1alpha1.TargetPair{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: v1alpha1.PairName(w.name, i)}, p))
		p.Finalizers = nil
		w.ok(w.c.Update(w.ctx, p))
	}
	w.step()
	if err := w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, &v1alpha1.StorageCluster{}); !apierrors.IsNotFound(err) {
		t.Fatalf("%v", err)
	}
}
