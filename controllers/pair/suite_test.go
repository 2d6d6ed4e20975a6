package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/config/rbac"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	envtest.Main(m, "../../config/crd/bases")
}

// world is a real API server and a real pair of target processes. The test simulates the workers:
// it creates the pods of the StatefulSets, and restarts the process that a pod stands for.
type world struct {
	t    *testing.T
	ctx  context.Context
	c    client.Client
	as   *rest.Config // the operator's, with its RBAC rules
	r    *Reconciler
	pair *harness.Pair
	name string
	rec  *events.FakeRecorder
	down map[string]bool // nodes that do not answer

	drains *drains // in front of the nodes; nil: the nodes themselves
}

var errDown = errors.New("disconnected by the test")

// Node implements Targets with the processes of the test, which have no certificates.
func (w *world) Node(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error) {
	if w.down[node] {
		return nil, errDown
	}
	c := w.pair.Client(slices.Index(Nodes, node))
	if w.drains != nil {
		return drainer{c, w.drains}, nil
	}
	return c, nil
}

func newWorld(t *testing.T, name string) *world {
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
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, c: c, name: name, down: map[string]bool{}, rec: events.NewFakeRecorder(1000)}
	ns := envtest.Namespace(t, cfg)
	w.as = envtest.Operator(t, cfg, ns, "../../config/rbac")
	own, err := client.New(w.as, client.Options{Scheme: s})
	w.ok(err)
	w.r = &Reconciler{Client: own, Live: own, Namespace: ns, Image: "gemel:1", Targets: w, Events: w.rec}
	w.ok(client.IgnoreAlreadyExists(c.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})))
	w.objects()
	return w
}

// objects creates the cluster and its pair.
func (w *world) objects() {
	w.t.Helper()
	w.ok(w.c.Create(w.ctx, &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: v1alpha1.StorageClusterSpec{Pairs: 1,
		Pools: []v1alpha1.Pool{{Name: "default", StorageClassName: "disks", Size: resource.MustParse("10Gi")}}}}))
	w.ok(w.c.Create(w.ctx, &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: v1alpha1.TargetPairSpec{Cluster: w.name,
		Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}))
}

// run starts the target processes.
func (w *world) run() {
	w.t.Helper()
	dir := w.t.TempDir()
	bin, err := harness.Build(w.ctx, dir, "./cmd/gemel-target")
	w.ok(err)
	w.pair, err = harness.New(harness.Options{Dir: dir, Binary: bin})
	w.ok(err)
	w.t.Cleanup(func() { _ = w.pair.Close() })
	w.ok(w.pair.Start(w.ctx))
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// step is one Reconcile.
func (w *world) step() {
	w.t.Helper()
	_, err := w.r.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
	w.ok(err)
}

func (w *world) get() *v1alpha1.TargetPair {
	w.t.Helper()
	p := &v1alpha1.TargetPair{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, p))
	return p
}

func (w *world) condition(kind string) metav1.Condition {
	w.t.Helper()
	c := meta.FindStatusCondition(w.get().Status.Conditions, kind)
	if c == nil {
		w.t.Fatalf("no condition %s", kind)
	}
	return *c
}

func (w *world) set(node string) *appsv1.StatefulSet {
	w.t.Helper()
	s := &appsv1.StatefulSet{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: NodeName(w.name, node)}, s))
	return s
}

// pod simulates the StatefulSet controller and the scheduler: it creates a node's pod if there is
// none.
func (w *world) pod(node, worker string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{}
	key := client.ObjectKey{Namespace: w.r.Namespace, Name: PodName(w.name, node)}
	if w.c.Get(w.ctx, key, p) == nil {
		return p
	}
	t := w.set(node).Spec.Template
	p = &corev1.Pod{ObjectMeta: *t.ObjectMeta.DeepCopy(), Spec: *t.Spec.DeepCopy()}
	p.Namespace, p.Name = key.Namespace, key.Name
	p.Spec.NodeName, p.Spec.Priority, p.Spec.PriorityClassName = worker, nil, ""
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: t.Spec.ServiceAccountName}})))
	w.ok(w.c.Create(w.ctx, p))
	return p
}

// gone simulates the kubelet: it removes a terminating pod and ends its process.
func (w *world) gone(node string) bool {
	w.t.Helper()
	p := &corev1.Pod{}
	err := w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: PodName(w.name, node)}, p)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	if err == nil {
		if p.DeletionTimestamp.IsZero() {
			return false
		}
		zero := int64(0)
		w.ok(client.IgnoreNotFound(w.c.Delete(w.ctx, p, &client.DeleteOptions{GracePeriodSeconds: &zero})))
	}
	return true
}

// events returns the events since the last call, without waiting.
func (w *world) events() (all []string) {
	for {
		select {
		case e := <-w.rec.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func images(w *world) string {
	return fmt.Sprint(w.set("a").Spec.Template.Spec.Containers[0].Image, " ", w.set("b").Spec.Template.Spec.Containers[0].Image)
}

// parts are the objects made for a pair, except its claims.
func (w *world) parts() []client.Object {
	base := Base(w.name)
	role, binding := rbac.Target(w.r.Namespace, base, base)
	out := []client.Object{role, binding}
	add := func(name string, o client.Object) {
		o.SetNamespace(w.r.Namespace)
		o.SetName(name)
		out = append(out, o)
	}
	add(base, &coordinationv1.Lease{})
	add(base, &policyv1.PodDisruptionBudget{})
	add(base, &networkingv1.NetworkPolicy{})
	add(base, &corev1.ServiceAccount{})
	for _, n := range Nodes {
		add(NodeName(w.name, n), &appsv1.StatefulSet{})
		add(NodeName(w.name, n), &corev1.Service{})
		add(NodeName(w.name, n), &corev1.Secret{})
	}
	return out
}
