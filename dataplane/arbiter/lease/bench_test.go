package lease

import (
	"context"
	"log/slog"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

// What a fail-over waits for at the arbiter when all is well: a record written over one that was
// read before.
func BenchmarkCompareAndSwap(b *testing.B) {
	c := benchClient(b)
	v, err := c.CompareAndSwap(context.Background(), "", record(1))
	for i := 0; b.Loop() && err == nil; i++ {
		v, err = c.CompareAndSwap(context.Background(), v, record(uint64(i+2)))
	}
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkGet(b *testing.B) {
	c := benchClient(b)
	_, err := c.CompareAndSwap(context.Background(), "", record(1))
	for b.Loop() && err == nil {
		_, _, err = c.Get(context.Background())
	}
	if err != nil {
		b.Fatal(err)
	}
}

func benchClient(b *testing.B) *Client {
	cfg := envtest.Config(b)
	ns := envtest.Namespace(b, cfg)
	if _, err := kubernetes.NewForConfigOrDie(cfg).CoordinationV1().Leases(ns).Create(context.Background(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "p0"}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	c, err := New(cfg, Options{Namespace: ns, Name: "p0", Cluster: "c", Pair: "p0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.pool.close)
	return c
}
