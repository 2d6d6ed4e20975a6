package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
)

// scene is a task of the operator and its end state.
type scene struct {
	name  string
	pairs int32 // at first; the second one has a LUN
	ask   func(w *world)
	end   []string // remaining pairs; nil: the cluster is deleted
	holds bool     // a LUN on the second pair
}

func pairsWanted(n int32) func(w *world) {
	return func(w *world) {
		c := w.get()
		c.Spec.Pairs, c.Spec.AllowScaleDown = n, true
		w.ok(w.c.Update(w.ctx, c))
	}
}

var scenes = []scene{
	{"made", 0, pairsWanted(2), []string{"p0", "p1"}, false},
	{"up", 1, pairsWanted(3), []string{"p0", "p1", "p2"}, false},
	{"down", 3, pairsWanted(1), []string{"p0"}, false},
	{"down-held", 3, pairsWanted(1), []string{"p0", "p1"}, true},
	{"gone", 2, func(w *world) { w.ok(w.c.Delete(w.ctx, w.get())) }, nil, false},
}

// begin starts a scene with operators that connect through the given proxies.
func (sc *scene) begin(t *testing.T, name string, proxies int) (*world, []*flakyapi.Proxy, []*Reconciler) {
	t.Helper()
	w := newWorld(t, name, max(sc.pairs, 1))
	if sc.pairs > 0 {
		w.step()
		for i := range int(sc.pairs) {
			luns := int32(0)
			if sc.holds && i == 1 {
				luns = 1
			}
			w.pair(i, luns, true)
		}
		w.step()
	}
	var out []*flakyapi.Proxy
	var ops []*Reconciler
	for range proxies {
		p, err := flakyapi.New(w.as)
		w.ok(err)
		t.Cleanup(p.Close)
		c, err := client.New(p.Config(), client.Options{Scheme: w.c.Scheme()})
		w.ok(err)
		out, ops = append(out, p), append(ops, &Reconciler{Client: c, Image: "gemel:1", Events: w.rec})
	}
	sc.ask(w)
	return w, out, ops
}

// play simulates the reconciler of pairs: it removes deleted pairs without LUNs. The UIDs of the
// others must not change.
func (w *world) play(born map[string]types.UID) {
	w.t.Helper()
	l := &v1alpha1.TargetPairList{}
	w.ok(w.c.List(w.ctx, l))
	for i := range l.Items {
		p := &l.Items[i]
		if p.Spec.Cluster != w.name {
			continue
		}
		if was, ok := born[p.Name]; ok && was != p.UID {
			w.t.Errorf("%s was created again", p.Name)
		}
		born[p.Name] = p.UID
		if p.DeletionTimestamp.IsZero() {
			continue
		}
		if p.Status.LogicalUnits > 0 {
			w.t.Errorf("%s holds a LUN and was deleted", p.Name)
		}
		p.Finalizers = nil
		w.ok(client.IgnoreNotFound(w.c.Update(w.ctx, p)))
	}
}

// done checks the end state.
func (sc *scene) done(w *world) error {
	w.t.Helper()
	c := &v1alpha1.StorageCluster{}
	err := w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if sc.end == nil && err == nil || sc.end != nil && err != nil {
		return fmt.Errorf("the cluster exists: %v", err == nil)
	}
	if got := w.there(); !slices.Equal(got, sc.end) || int(c.Status.Pairs) != len(sc.end) {
		return fmt.Errorf("pairs %v, status %d; not %v", got, c.Status.Pairs, sc.end)
	}
	return nil
}

// The operator crashes at its first write, the next operator at its second, and so on until one
// completes.
func TestCrashAtEveryCall(t *testing.T) {
	for i := range scenes {
		sc := &scenes[i]
		for _, landed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", sc.name, landed), func(t *testing.T) {
				w, proxies, ops := sc.begin(t, fmt.Sprintf("%s-%v", sc.name, landed), 1)
				born := map[string]types.UID{}
				crashes, n := 0, 1
				var err error
				for began := time.Now(); time.Since(began) < time.Minute; {
					before := w.versions()
					proxies[0].CrashAt(n, landed, nil)
					_, err = ops[0].Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
					crashed := proxies[0].Crashed()
					proxies[0].Reset()
					switch {
					case !crashed:
						n = 1
					case w.versions() == before:
						crashes++
						n++
					default: // the state has changed: each call in it counts again
						crashes++
					}
					w.play(born)
					if !crashed && err == nil {
						if err = sc.done(w); err == nil {
							break
						}
					}
				}
				if err != nil || crashes < 2 {
					t.Fatalf("%v after %d crashes", err, crashes)
				}
				t.Logf("%d crashes", crashes)
			})
		}
	}
}

// versions of the cluster and its pairs.
func (w *world) versions() string {
	w.t.Helper()
	c := &v1alpha1.StorageCluster{}
	_ = w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c)
	out := c.ResourceVersion
	l := &v1alpha1.TargetPairList{}
	w.ok(w.c.List(w.ctx, l))
	for _, p := range l.Items {
		if p.Spec.Cluster == w.name {
			out += " " + p.ResourceVersion
		}
	}
	return out
}

// between runs a function once after pairs were listed, as another operator that writes meanwhile.
type between struct {
	client.Client
	do func()
}

func (b *between) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	err := b.Client.List(ctx, l, opts...)
	if _, ok := l.(*v1alpha1.TargetPairList); ok && b.do != nil {
		do := b.do
		b.do = nil
		do()
	}
	return err
}

// An operator with an outdated list does not overwrite the newer status of another operator.
func TestOutdatedListDoesNotOverwriteTheStatus(t *testing.T) {
	w := newWorld(t, "older", 1)
	w.step()
	pairsWanted(3)(w)
	w.ok(w.c.Create(w.ctx, &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PairName(w.name, 1)},
		Spec: v1alpha1.TargetPairSpec{Cluster: w.name, Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}))
	older := *w.r
	older.Client = &between{w.r.Client, func() { w.step(); w.step() }}
	again, err := older.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
	w.ok(err)
	if got := w.get().Status.Pairs; got != 3 || again.RequeueAfter == 0 {
		t.Errorf("status.pairs is %d, requeued after %v", got, again.RequeueAfter)
	}
}

// Two operators run at once, each with an API server that loses, repeats and rejects calls.
func TestTwoOperatorsKeepTheInvariants(t *testing.T) {
	for i := range scenes {
		sc := &scenes[i]
		t.Run(sc.name, func(t *testing.T) {
			w, proxies, ops := sc.begin(t, "two-"+sc.name, 2)
			for i, p := range proxies {
				for j, f := range []flakyapi.Fault{{LoseResponse: true}, {Duplicate: true}, {LoseRequest: true}, {Answer: 409}, {Answer: 500}} {
					p.Add(flakyapi.Rule{Match: flakyapi.Match{Mutating: true}, Fault: f, Probability: .07, Seed: uint64(10*i + j)})
				}
			}
			ctx, stop := context.WithCancel(w.ctx)
			var both sync.WaitGroup
			for _, r := range ops {
				both.Go(func() {
					for ctx.Err() == nil {
						_, _ = r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
					}
				})
			}
			born := map[string]types.UID{}
			var err error
			for began := time.Now(); time.Since(began) < time.Minute; {
				w.play(born)
				if err = sc.done(w); err == nil {
					break
				}
			}
			stop()
			both.Wait()
			w.play(born)
			if err == nil {
				err = sc.done(w)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
