package consistencygroup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// real is a running reconciler with its caches and the operator's rights at a real API server.
type real struct {
	*testing.T
	*pairs
	c         client.Client
	namespace string
}

func (w *real) ok(errs ...error) {
	w.Helper()
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
}

func run(t *testing.T) *real {
	t.Helper()
	cfg := envtest.Config(t)
	w := &real{T: t, pairs: &pairs{luns: map[string]*targetv1.LUN{}, phase: targetv1.Phase_PHASE_IN_SYNC}, namespace: envtest.Namespace(t, cfg)}
	s := runtime.NewScheme()
	w.ok(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s))
	var err error
	w.c, err = client.New(cfg, client.Options{Scheme: s})
	w.ok(err)
	own := envtest.Operator(t, cfg, envtest.Namespace(t, cfg), "../../config/rbac")
	skip := true
	m, err := ctrl.NewManager(own, ctrl.Options{Scheme: s, Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &skip}})
	w.ok(err)
	f, c, err := groups.NewFinder(m)
	w.ok(err)
	r := &Reconciler{Client: m.GetClient(), Live: m.GetAPIReader(), Pairs: w, Groups: f, Events: m.GetEventRecorder("test"), Settle: 20 * time.Millisecond}
	w.ok(r.SetupWithManager(m, c))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *real) group(name, app string) *v1alpha1.ConsistencyGroup {
	g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	g.Spec.Selector.MatchLabels = map[string]string{"app": app}
	w.ok(w.c.Create(w.Context(), g))
	return g
}

// becomes waits until the condition of a group starts with a text, and the group has a balance.
func (w *real) becomes(g *v1alpha1.ConsistencyGroup, ready, balance string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
	defer cancel()
	w.ok(harness.Wait(ctx, "the group is "+ready, func() (bool, string) {
		err := w.c.Get(ctx, client.ObjectKeyFromObject(g), g)
		x := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady)
		if err != nil || x == nil {
			return false, fmt.Sprint(err)
		}
		now := fmt.Sprintf("%s %s: %s", x.Status, x.Reason, x.Message)
		return strings.HasPrefix(now, ready) && g.Status.Balance == balance, now + ", " + g.Status.Balance
	}))
}

func (w *real) claim(name, app string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{"app": app}}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	w.ok(w.c.Create(w.Context(), c))
	return c
}

// bind gives a claim a LUN with its home at node a, and a volume.
func (w *real) bind(c *corev1.PersistentVolumeClaim) *v1alpha1.LogicalUnit {
	name := "g-" + string(c.UID)
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "main", Size: resource.MustParse("1Gi"),
		Volume: &v1alpha1.VolumeInfo{Name: "pvc-" + string(c.UID), Namespace: c.Namespace, PVC: c.Name}, Placement: &v1alpha1.Placement{Pair: w.namespace, UUID: string(c.UID)}}}
	w.ok(w.c.Create(w.Context(), lu))
	lu.Status.Owner, lu.Status.PreferredNode = "a", "a"
	w.ok(w.c.Status().Update(w.Context(), lu))
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID)}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: c.Spec.AccessModes,
		ClaimRef:               &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: name}}}}
	w.ok(w.c.Create(w.Context(), pv))
	return lu
}

// A group hears of its claims, their volumes and LUNs, and of the other groups of its namespace;
// the operator's rights suffice. No LUN moves, because the pair does not exist.
func TestGroupFollowsWhatItSelects(t *testing.T) {
	w := run(t)
	g := w.group("db", "db")
	w.becomes(g, "False NoClaims", "")
	d0, d1 := w.claim("d0", "db"), w.claim("d1", "web")
	w.becomes(g, "False Progressing: none of the 1 claims is bound yet", "")
	w.bind(d0)
	w.becomes(g, "True Ready: 1 of 1 claims are bound, and their LUNs are in StorageCluster main", "a: 1, b: 0")
	lu := w.bind(d1)
	relabel := func(app string) {
		t.Helper()
		patch := client.MergeFrom(d1.DeepCopy())
		d1.Labels = map[string]string{"app": app}
		w.ok(w.c.Patch(t.Context(), d1, patch))
	}
	relabel("db")
	w.becomes(g, "True Ready: 2 of 2 claims", "a: 2, b: 0")
	lu.Status.Owner, lu.Status.PreferredNode = "b", "b"
	w.ok(w.c.Status().Update(t.Context(), lu))
	w.becomes(g, "True Ready: 2 of 2 claims", "a: 1, b: 1")
	if len(g.Status.Members) != 2 || g.Status.Members[1].LogicalUnit != lu.Name || g.Status.Members[1].Node != "b" || g.Spec.Spread != v1alpha1.SpreadNodes {
		t.Errorf("%+v", g)
	}
	other := w.group("other", "db")
	w.becomes(g, "False Conflict: claim d0 is selected by the ConsistencyGroups db and other", "a: 1, b: 1")
	w.becomes(other, "False Conflict: claim d0 is selected by the ConsistencyGroups db and other", "a: 1, b: 1")
	w.ok(w.c.Delete(t.Context(), other))
	w.becomes(g, "True Ready", "a: 1, b: 1")
	relabel("web")
	w.becomes(g, "True Ready: 1 of 1 claims", "a: 1, b: 0")
	w.ok(w.c.Delete(t.Context(), d0))
	patch := client.MergeFrom(d0.DeepCopy())
	d0.Finalizers = nil // of the controller that protects claims in use, which does not run here
	w.ok(client.IgnoreNotFound(w.c.Patch(t.Context(), d0, patch)))
	w.becomes(g, "False NoClaims", "")
}

// The home of a LUN changes at its pair with the operator's rights, and the event is on the group.
func TestGroupIsEvenedOutWithTheRightsOfTheOperator(t *testing.T) {
	w := run(t)
	p := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Spec: v1alpha1.TargetPairSpec{Cluster: "main", Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
	w.ok(w.c.Create(t.Context(), p))
	p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionInSync, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, LastTransitionTime: metav1.Now()}}
	p.Status.Ownership = &v1alpha1.OwnershipStatus{Mode: v1alpha1.BalancingAuto}
	w.ok(w.c.Status().Update(t.Context(), p))
	for _, name := range []string{"d0", "d1"} {
		c := w.claim(name, "db")
		w.luns[string(c.UID)] = &targetv1.LUN{Uuid: string(c.UID), Owner: "a", PreferredNode: "a"}
		w.bind(c)
	}
	g := w.group("db", "db")
	w.becomes(g, "True Ready", "a: 1, b: 1")
	if home := g.Status.Members[1].Home; home != "b" {
		t.Errorf("d1 is at home on node %s", home)
	}
	list := &corev1.EventList{}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w.ok(harness.Wait(ctx, "there is an event", func() (bool, string) {
		err := w.c.List(ctx, list, client.InNamespace(w.namespace))
		seen := map[string]bool{}
		for _, e := range list.Items {
			seen[e.InvolvedObject.Name+" "+e.Reason] = true
		}
		return err == nil && seen["db "+v1alpha1.ReasonSpread], fmt.Sprint(err, seen)
	}))
}

func TestChangesOfALUNThatConcernItsGroup(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.LogicalUnit)
		want   bool
	}{
		"owner":         {func(lu *v1alpha1.LogicalUnit) { lu.Status.Owner = "b" }, true},
		"home":          {func(lu *v1alpha1.LogicalUnit) { lu.Status.PreferredNode = "b" }, true},
		"pin":           {func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode = "b" }, true},
		"preferredNode": {func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "b" }, true},
		"made":          {func(lu *v1alpha1.LogicalUnit) { lu.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"} }, true},
		"allocated":     {func(lu *v1alpha1.LogicalUnit) { lu.Status.Allocated = resource.NewQuantity(1, resource.BinarySI) }, false},
		"hosts":         {func(lu *v1alpha1.LogicalUnit) { lu.Spec.Hosts = []v1alpha1.HostAccess{{IQN: "x"}} }, false},
	} {
		old, now := &v1alpha1.LogicalUnit{}, &v1alpha1.LogicalUnit{}
		c.change(now)
		if got := lunChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: now}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
