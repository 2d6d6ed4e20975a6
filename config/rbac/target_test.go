package rbac

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/arbiter/lease"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// A target reads and updates its Lease, and nothing else: it has no other verb, and no access to
// the Lease of another pair.
func TestTargetReachesOnlyItsLease(t *testing.T) {
	cfg := envtest.Config(t)
	ctx := context.Background()
	ns := envtest.Namespace(t, cfg)
	admin := kubernetes.NewForConfigOrDie(cfg)
	for _, name := range []string{"pair-p0", "pair-p1"} {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{lease.LabelPair: "p0"}}}
		if _, err := admin.CoordinationV1().Leases(ns).Create(ctx, l, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	role, binding := Target(ns, "pair-p0", "target")
	_, err1 := admin.RbacV1().Roles(ns).Create(ctx, role, metav1.CreateOptions{})
	_, err2 := admin.RbacV1().RoleBindings(ns).Create(ctx, binding, metav1.CreateOptions{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	envtest.Install(t, cfg, ns, "servers.yaml")
	as := envtest.As(cfg, ns, "target")
	open := func(name string) *lease.Client {
		c, err := lease.New(as, lease.Options{Namespace: ns, Name: name, Cluster: "c", Pair: "p0", Timeout: 10 * time.Second,
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	mine := open("pair-p0")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // the authorizer hears of the role a moment later
		_, _, err := mine.Get(ctx)
		if errors.Is(err, arbiter.ErrNotFound) {
			break
		}
		if !errors.Is(err, lease.ErrDenied) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	rec := pair.Record{Cluster: "c", Pair: "p0", Epoch: 1, Generation: 1, Members: []pair.Member{{Store: "s"}}}
	if _, err := mine.CompareAndSwap(ctx, "", rec); err != nil {
		t.Error(err)
	}
	if _, _, err := open("pair-p1").Get(ctx); !errors.Is(err, lease.ErrDenied) {
		t.Errorf("another one's: %v", err)
	}
	k := kubernetes.NewForConfigOrDie(as)
	leases := k.CoordinationV1().Leases(ns)
	for what, err := range map[string]error{
		"delete": leases.Delete(ctx, "pair-p0", metav1.DeleteOptions{}),
		"patch":  second(leases.Patch(ctx, "pair-p0", types.MergePatchType, []byte(`{"spec":{"holderIdentity":"x"}}`), metav1.PatchOptions{})),
		"create": second(leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})),
		"list":   second(leases.List(ctx, metav1.ListOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The address of the API server itself, which it keeps in an EndpointSlice.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		s, err := k.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil && len(s.Endpoints) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
