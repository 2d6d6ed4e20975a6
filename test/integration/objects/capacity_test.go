package objects

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/csi/controller"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// The capacity is the largest LUN that one ready pair of the class's cluster takes, never a sum.
func TestCapacityOfSeveralPairs(t *testing.T) {
	cfg := envtest.Config(t)
	c, err := operator.Client(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	add := func(name, cluster, free string, ready bool) {
		t.Helper()
		o := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TargetPairSpec{Cluster: cluster, Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Delete(context.Background(), o) })
		if free == "" {
			return // it has said nothing yet
		}
		q := resource.MustParse(free)
		o.Status.Capacity, o.Status.Free = &q, &q
		is := metav1.ConditionFalse
		if ready {
			is = metav1.ConditionTrue
		}
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: is, Reason: "Ready", LastTransitionTime: metav1.Now()}}
		if err := c.Status().Update(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	s := controller.New(objects.New(c), slog.New(slog.DiscardHandler))
	capacity := func(params map[string]string) int64 {
		t.Helper()
		r, err := s.GetCapacity(ctx, &csi.GetCapacityRequest{Parameters: params, AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "z"}}})
		if err != nil {
			t.Fatal(err)
		}
		if r.MaximumVolumeSize == nil || r.MaximumVolumeSize.Value != r.AvailableCapacity {
			t.Fatalf("capacity %d, largest %v", r.AvailableCapacity, r.MaximumVolumeSize)
		}
		return r.AvailableCapacity
	}
	if n := capacity(map[string]string{"cluster": "gold"}); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
	pool := func(name, pool, free string) {
		t.Helper()
		o := &v1alpha1.TargetPair{}
		if err := c.Get(ctx, client.ObjectKey{Name: name}, o); err != nil {
			t.Fatal(err)
		}
		if len(o.Status.Pools) == 0 {
			o.Status.Pools = []v1alpha1.PoolStatus{{Name: "default", Capacity: o.Status.Capacity, Free: o.Status.Free}}
		}
		q := resource.MustParse(free)
		o.Status.Pools = append(o.Status.Pools, v1alpha1.PoolStatus{Name: pool, Capacity: &q, Free: &q})
		all := o.Status.Free.DeepCopy()
		all.Add(q)
		o.Status.Free = &all
		if err := c.Status().Update(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	add("gold-p0", "gold", "5Gi", true)
	add("gold-p1", "gold", "7516192769", true) // 7Gi and one byte: the answer is in whole MiB
	add("gold-p2", "gold", "90Gi", false)      // does not serve
	add("gold-p3", "gold", "", true)
	add("silver-p0", "silver", "20Gi", true)
	add("huge-p0", "huge", "1Pi", true)
	for _, x := range []struct {
		cluster string
		want    int64
	}{{"gold", 7 << 30}, {"silver", 20 << 30}, {"huge", 256 << 40}, {"bronze", 0}} {
		if n := capacity(map[string]string{"cluster": x.cluster, "csi.storage.k8s.io/fstype": "xfs"}); n != x.want {
			t.Errorf("%s: %d, not %d", x.cluster, n, x.want)
		}
	}
	pool("gold-p0", "fast", "3Gi")
	pool("gold-p1", "fast", "2Gi")
	pool("gold-p2", "fast", "80Gi")
	for name, want := range map[string]int64{"": 7 << 30, "default": 7 << 30, "fast": 3 << 30, "none": 0} {
		if n := capacity(map[string]string{"cluster": "gold", "pool": name}); n != want {
			t.Errorf("pool %q: %d, not %d", name, n, want)
		}
	}
	if n := capacity(nil); n != 256<<40 {
		t.Errorf("of any cluster: %d", n)
	}
	_, err = s.GetCapacity(ctx, &csi.GetCapacityRequest{Parameters: map[string]string{"klaster": "gold"}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "klaster") {
		t.Error(err)
	}
}
