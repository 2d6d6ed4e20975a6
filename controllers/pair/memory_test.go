package pair

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// writes counts what is written through a client, but for statuses.
type writes struct {
	client.Client
	n atomic.Int32
}

func (c *writes) Apply(ctx context.Context, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	c.n.Add(1)
	return c.Client.Apply(ctx, o, opts...)
}

func (c *writes) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.n.Add(1)
	return c.Client.Create(ctx, o, opts...)
}

func (c *writes) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	c.n.Add(1)
	return c.Client.Update(ctx, o, opts...)
}

func (c *writes) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	c.n.Add(1)
	return c.Client.Patch(ctx, o, p, opts...)
}

// A reconcile of an unchanged pair writes nothing. What somebody changes or deletes is put back,
// and what the spec changes is applied, each alone.
func TestUnchangedPairIsNotWritten(t *testing.T) {
	w := newWorld(t, "unchanged")
	w.down["a"], w.down["b"] = true, true
	count := &writes{Client: w.r.Client}
	w.r.Client = count
	settled := func(what string, least, most int32) {
		t.Helper()
		count.n.Store(0)
		w.step()
		if n := count.n.Load(); n < least || n > most {
			t.Errorf("%s: %d writes, and %d to %d were expected", what, n, least, most)
		}
		count.n.Store(0)
		if w.step(); count.n.Load() != 0 {
			t.Errorf("%s: the reconcile after it writes %d times", what, count.n.Load())
		}
	}
	w.step()
	for _, n := range Nodes {
		w.pod(n, "worker-"+n)
	}
	w.step()
	w.step()
	settled("the workers are known", 0, 0)

	key := client.ObjectKey{Namespace: w.r.Namespace, Name: Base(w.name)}
	budget := &policyv1.PodDisruptionBudget{}
	w.ok(w.c.Get(w.ctx, key, budget))
	w.ok(w.c.Delete(w.ctx, budget))
	settled("a deleted disruption budget", 1, 1)
	w.ok(w.c.Get(w.ctx, key, budget))

	policy := &networkingv1.NetworkPolicy{}
	w.ok(w.c.Get(w.ctx, key, policy))
	policy.Spec.Ingress = nil
	w.ok(w.c.Update(w.ctx, policy))
	settled("a changed network policy", 1, 1)
	w.ok(w.c.Get(w.ctx, key, policy))
	if len(policy.Spec.Ingress) == 0 {
		t.Error("the network policy is not put back")
	}

	s := &corev1.Service{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: NodeName(w.name, "a")}, s))
	s.Labels["other"] = "x"
	w.ok(w.c.Update(w.ctx, s))
	settled("a label of somebody else", 1, 1)

	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	c.Spec.FullCopies = true
	w.ok(w.c.Update(w.ctx, c))
	settled("an argument of both nodes, and the rollout on record", 3, 3)

	// The next process of the operator knows nothing of it, and applies everything once.
	w.r = &Reconciler{Client: count, Live: w.r.Live, Namespace: w.r.Namespace, Image: w.r.Image, Targets: w, Events: w.rec}
	settled("a new process", 9, 11)
}
