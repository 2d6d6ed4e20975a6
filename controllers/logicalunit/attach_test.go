package logicalunit

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const iqnOfWorker = "iqn.2026-11.test:worker"

// apiCalls of one reconcile, without reads of the cache.
type apiCalls struct {
	list []string
	fail error // of reads of Nodes
}

func (a *apiCalls) did(call string) { a.list = append(a.list, call) }

// count has the fixture's clients note what goes to the API server.
func (a *apiCalls) count(f *fixture) {
	base := f.c.(client.WithWatch)
	funcs := interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			a.did("update")
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			a.did("patch")
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			a.did("update " + sub)
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*corev1.Node); ok && a.fail != nil {
				return a.fail
			}
			return c.Get(ctx, key, o, opts...)
		},
	}
	f.r.Client = interceptor.NewClient(base, funcs)
	funcs.Get = func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		a.did("get")
		return c.Get(ctx, key, o, opts...)
	}
	f.r.Live = interceptor.NewClient(base, funcs)
}

// attached maps the LUN of the pair p to a worker, and returns where the pair is told that it is,
// and what the attach has called.
func attached(t *testing.T, worker string, change func(*v1alpha1.LogicalUnit), fail error) (*targetv1.Near, []string) {
	t.Helper()
	f, _ := near(t, func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Consumer = &v1alpha1.Consumer{Worker: "w2"} // so that the LUN is on pair p
		if change != nil {
			change(lu)
		}
	})
	if worker != "" {
		h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: worker}, Spec: v1alpha1.HostSpec{IQN: "iqn.2026-11.test:Worker"}}
		if err := f.c.Create(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	if lu, _, err := f.look(); err != nil || lu.Spec.Placement.Pair != "p" {
		t.Fatalf("%+v %v", lu, err)
	}
	f.spec(hosts(iqnOfWorker))
	a := &apiCalls{fail: fail}
	a.count(f)
	lu, _, err := f.look()
	if err != nil || condition(lu, "Published") != "True Ready" || len(lu.Status.Hosts) != 1 {
		t.Fatalf("%+v %v", lu.Status, err)
	}
	return f.near, slices.Concat(f.calls, a.list)
}

// The pair is told where the host is by the request that maps it: an attach makes the same calls,
// to the pair and to the API server, as one of a host whose place is unknown.
func TestAttachTellsWhereTheHostIs(t *testing.T) {
	none, before := attached(t, "", nil, nil)
	if none != nil || !slices.Contains(before, "map "+iqnOfWorker) {
		t.Fatalf("%v %v", none, before)
	}
	for name, c := range map[string]struct {
		worker   string
		change   func(*v1alpha1.LogicalUnit)
		fail     error
		node, by string
	}{
		"on the worker of node a": {worker: "w1", node: "a", by: "worker"},
		"on the worker of node b": {worker: "w2", node: "b", by: "worker"},
		"equally near":            {worker: "w7"},
		"in another zone":         {worker: "w5"},
		"preferredNode":           {worker: "w1", change: func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "b" }},
		"pinnedNode":              {worker: "w1", change: func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode = "b" }},
		"labels cannot be read":   {worker: "w1", fail: errors.New("the cache does not answer"), node: "a", by: "worker"},
		"no labels and no worker": {worker: "w5", fail: errors.New("the cache does not answer")},
	} {
		near, calls := attached(t, c.worker, c.change, c.fail)
		if near.GetNode() != c.node || near.GetBy() != c.by {
			t.Errorf("%s: %v", name, near)
		}
		if c.change == nil && !slices.Equal(calls, before) {
			t.Errorf("%s: the attach calls\n%v, one without it\n%v", name, calls, before)
		}
	}
}
