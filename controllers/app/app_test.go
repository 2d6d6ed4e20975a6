package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	envtest.Main(m, "../../config/crd/bases")
}

func TestCheckNamesEveryInvalidFlag(t *testing.T) {
	err := (&Options{Image: "two words"}).Check()
	if err == nil || !strings.Contains(err.Error(), "--namespace") || !strings.Contains(err.Error(), "--image") {
		t.Error(err)
	}
	if err := (&Options{Namespace: "x", Image: "gemel:1"}).Check(); err != nil {
		t.Error(err)
	}
}

// The operator's clients do not limit requests, whatever the configuration; client-go does by
// default.
func TestRequestsAreNotCapped(t *testing.T) {
	cfg := rest.CopyConfig(envtest.Config(t))
	cfg.QPS, cfg.Burst = 0, 0 // as from a file or a service account; envtest has its own limits
	limiter := func(cfg *rest.Config) flowcontrol.RateLimiter {
		c, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c.CoreV1().RESTClient().GetRateLimiter()
	}
	if l := limiter(cfg); l == nil {
		t.Fatal("client-go has no limit by default: this test cannot catch one")
	}
	o := Options{Namespace: "x", Image: "gemel:1", Metrics: "0", Health: "0", Enroll: "0", several: true}
	m, err := o.manager(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if l := limiter(m.GetConfig()); l != nil {
		t.Errorf("the operator sends at most %v requests a second", l.QPS())
	}
	if cfg.QPS != 0 {
		t.Error("the caller's configuration was changed")
	}
}

// The operator, with leader election and all its caches, runs with its RBAC rules.
func TestOperatorRunsWithItsRBACRules(t *testing.T) {
	cfg := envtest.Config(t)
	ns := envtest.Namespace(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := client.New(cfg, client.Options{Scheme: Scheme()})
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(err)
	for i := range 2 {
		ok(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%d", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprintf("w%d", i)}}}))
	}
	ok(c.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}))
	ok(c.Create(ctx, &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "run"}, Spec: v1alpha1.StorageClusterSpec{Pairs: 1,
		Pools: []v1alpha1.Pool{{Name: "default", StorageClassName: "disks", Size: resource.MustParse("10Gi")}}}}))
	run, stop := context.WithCancel(ctx)
	const replicas = 2
	done := make(chan error, replicas)
	as := envtest.Operator(t, cfg, ns, "../../config/rbac")
	var enroll [replicas]string
	for i := range enroll {
		enroll[i], err = freeport.Addr("127.0.0.1")
		ok(err)
		go func() {
			done <- Run(run, as, &Options{Namespace: ns, Image: "gemel:1", Metrics: "0", Health: "0", Enroll: enroll[i], LeaderElect: true, several: true})
		}()
	}
	ok(harness.Wait(ctx, "both targets are created", func() (bool, string) {
		select {
		case err := <-done:
			return false, fmt.Sprintf("the operator ended: %v", err)
		default:
		}
		for _, n := range pair.Nodes {
			if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: pair.NodeName("run-p0", n)}, &appsv1.StatefulSet{}); err != nil {
				return false, err.Error()
			}
		}
		x := &v1alpha1.StorageCluster{}
		err := c.Get(ctx, client.ObjectKey{Name: "run"}, x)
		return err == nil && meta.FindStatusCondition(x.Status.Conditions, v1alpha1.ConditionUpToDate) != nil && x.Status.Pairs == 1, fmt.Sprintf("%v %+v", err, x.Status)
	}))
	// A LogicalUnit of a missing cluster gets a condition: its reconciler and its uncached reads
	// work.
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lost"}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "nowhere", Size: resource.MustParse("1Gi")}}
	ok(c.Create(ctx, lu))
	ok(harness.Wait(ctx, "the LUN has a condition", func() (bool, string) {
		err := c.Get(ctx, client.ObjectKeyFromObject(lu), lu)
		x := meta.FindStatusCondition(lu.Status.Conditions, v1alpha1.ConditionReady)
		return err == nil && x != nil && x.Reason == v1alpha1.ReasonInvalid && strings.Contains(x.Message, "StorageCluster nowhere does not exist"), fmt.Sprintf("%v %+v", err, x)
	}))
	// A ConsistencyGroup gets a condition in any namespace: its reconciler and the cache of claims
	// work.
	g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: envtest.Namespace(t, cfg), Name: "db"}}
	g.Spec.Selector.MatchLabels = map[string]string{"app": "db"}
	ok(c.Create(ctx, g))
	ok(harness.Wait(ctx, "the group has a condition", func() (bool, string) {
		err := c.Get(ctx, client.ObjectKeyFromObject(g), g)
		x := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady)
		return err == nil && x != nil && x.Reason == v1alpha1.ReasonNoClaims, fmt.Sprintf("%v %+v", err, x)
	}))
	// Every replica answers a worker, not only the leader: that it has no LUN of the pair, which is
	// the last check.
	w, err := operator.Worker(ctx, cfg, ns, "w0", t.TempDir())
	ok(err)
	ok(c.Create(ctx, &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "w0"}, Spec: v1alpha1.HostSpec{IQN: "iqn.2026-11.storage.gemel:w0", AttachMode: "Userspace"}}))
	for _, w.Endpoint = range enroll {
		ok(harness.Wait(ctx, "a replica answers", func() (bool, string) {
			_, err := w.Enroll(ctx, "run-p0")
			return err != nil && strings.Contains(err.Error(), "no LUN of pair run-p0"), fmt.Sprint(err)
		}))
	}
	stop()
	for range replicas {
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
