package pair

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// governed is a pair that takes policies.
type governed struct {
	targetv1.TargetServiceClient
	asked []*targetv1.SetOwnershipPolicyRequest
	nodes []string
	err   error
}

func (g *governed) Node(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error) {
	g.nodes = append(g.nodes, node)
	return g, nil
}

func (g *governed) SetOwnershipPolicy(_ context.Context, q *targetv1.SetOwnershipPolicyRequest, _ ...grpc.CallOption) (*targetv1.SetOwnershipPolicyResponse, error) {
	g.asked = append(g.asked, q)
	return &targetv1.SetOwnershipPolicyResponse{}, g.err
}

// The pair gets the policy of its cluster when it shows another one, and only then.
func TestPairGetsThePolicyOfItsCluster(t *testing.T) {
	g := &governed{}
	r, c, p, v := &Reconciler{Targets: g}, &v1alpha1.StorageCluster{}, &v1alpha1.TargetPair{}, &view{}
	c.Generation = 4
	for i, name := range Nodes {
		v.nodes[i] = nodeView{name: name}
	}
	keep := func() *targetv1.SetOwnershipPolicyRequest {
		t.Helper()
		g.asked = nil
		if r.keepPolicy(t.Context(), c, p, v); len(g.asked) > 1 {
			t.Errorf("%v", g.asked)
		}
		if len(g.asked) == 0 {
			return nil
		}
		return g.asked[0]
	}
	shows := func(mode string, delay time.Duration, version uint64) {
		v.nodes[1].status = &targetv1.Status{Phase: targetv1.Phase_PHASE_IN_SYNC, Ownership: &targetv1.Ownership{Mode: mode, FailBackDelay: durationpb.New(delay), PolicyVersion: version}}
	}
	c.Spec.Balancing = &v1alpha1.Balancing{Mode: v1alpha1.BalancingObserve, FailBackDelay: &metav1.Duration{Duration: time.Hour}}
	if q := keep(); q != nil {
		t.Errorf("no node serves: %v", q)
	}
	shows("", 0, 0)
	if q := keep(); q != nil {
		t.Errorf("the node is of a release that decides nothing: %v", q)
	}
	c.Spec.Balancing = nil
	shows("off", time.Minute, 0)
	if q := keep(); q != nil {
		t.Errorf("the cluster has no policy, and the flags count: %v", q)
	}
	c.Spec.Balancing = &v1alpha1.Balancing{Mode: v1alpha1.BalancingObserve, FailBackDelay: &metav1.Duration{Duration: time.Hour}}
	if q := keep(); q == nil || q.Mode != "observe" || q.FailBackDelaySeconds != 3600 || q.Version != 4 || g.nodes[len(g.nodes)-1] != "b" {
		t.Errorf("%v", q)
	}
	shows("observe", time.Hour, 4)
	if q := keep(); q != nil {
		t.Errorf("the pair has it: %v", q)
	}
	for _, other := range []func(){func() { shows("observe", time.Hour, 5) }, func() { shows("off", time.Hour, 4) }, func() { shows("observe", time.Minute, 4) }} {
		if other(); keep() == nil {
			t.Errorf("the pair has another one: %v", v.nodes[1].status)
		}
	}
	c.Spec.Balancing = nil
	if q := keep(); q == nil || q.Mode != "auto" || q.FailBackDelaySeconds != 30 {
		t.Errorf("the cluster has none any more: %v", q)
	}
	g.err = status.Error(codes.Unimplemented, "a mixed pair")
	keep() // tried again by the next reconcile
}

// A change of the policy restarts no target.
func TestPolicyRestartsNoTarget(t *testing.T) {
	r, c, p := &Reconciler{Image: "i"}, &v1alpha1.StorageCluster{}, &v1alpha1.TargetPair{}
	before := r.revision(c, p, v1alpha1.PairNode{Name: "a"}, nil)
	c.Spec.Balancing, c.Generation = &v1alpha1.Balancing{Mode: v1alpha1.BalancingOff, FailBackDelay: &metav1.Duration{Duration: time.Minute}}, 2
	if r.revision(c, p, v1alpha1.PairNode{Name: "a"}, nil) != before {
		t.Error("the pods are to be restarted")
	}
}

// The CPUs of a cluster are an argument of its targets, and part of what a pod must run; a cluster
// without them has the pods that it had before.
func TestCPUsAreAnArgument(t *testing.T) {
	c, p := &v1alpha1.StorageCluster{}, &v1alpha1.TargetPair{Spec: v1alpha1.TargetPairSpec{Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
	r := &Reconciler{Namespace: "ns", Image: "gemel:1"}
	args := func() string { return strings.Join(r.args(c, p, "a", nil), " ") }
	plain, revision := args(), r.revision(c, p, p.Spec.Nodes[0], nil)
	c.Spec.Balancing = &v1alpha1.Balancing{Mode: v1alpha1.BalancingOff}
	if args() != plain || r.revision(c, p, p.Spec.Nodes[0], nil) != revision {
		t.Errorf("the mode is an argument: %s", args())
	}
	for given, want := range map[string]string{"2": "--cpus=2", "1500m": "--cpus=1.5", "50m": "--cpus=0.05"} {
		c.Spec.Balancing.CPUs = new(resource.MustParse(given))
		if !strings.Contains(args()+" ", " "+want+" ") || r.revision(c, p, p.Spec.Nodes[0], nil) == revision {
			t.Errorf("%s: %s lacks %s", given, args(), want)
		}
	}
}
