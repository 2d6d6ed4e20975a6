package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
)

// stage is a world in which operators crash. It simulates the StatefulSet controller and the
// kubelet: a deleted pod is created again from its template, and does not answer meanwhile. The
// invariants are checked after each step.
type stage struct {
	*world
	lun  string                        // UUID of a LUN of the pair, if any
	born map[string]types.UID          // objects that may be created only once
	away map[string]bool               // nodes whose pod was deleted and not created again yet
	ops  []*Reconciler                 // operators, each with its own access to the API
	seen map[string]map[types.UID]bool // deleted pods, by node
	old  map[string]string             // certificates
	mu   sync.Mutex
}

// Node implements Targets: a node without a pod does not answer.
func (s *stage) Node(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error) {
	s.mu.Lock()
	away := s.away[node]
	s.mu.Unlock()
	if away {
		return nil, errDown
	}
	return s.world.Node(ctx, p, node)
}

// stage returns a pair of its own name on the world's processes, with operators that connect
// through the given proxies.
func (w *world) stage(name string, proxies ...*flakyapi.Proxy) *stage {
	w.t.Helper()
	own := &world{t: w.t, ctx: w.ctx, c: w.c, name: name, pair: w.pair, down: map[string]bool{}, rec: events.NewFakeRecorder(10000), drains: &drains{}}
	s := &stage{world: own, born: map[string]types.UID{}, away: map[string]bool{}, seen: map[string]map[types.UID]bool{"a": {}, "b": {}}}
	own.r = &Reconciler{Client: w.r.Client, Live: w.r.Live, Namespace: w.r.Namespace, Image: "gemel:1", Targets: s, Events: own.rec}
	for _, p := range proxies {
		c, err := client.New(p.Config(), client.Options{Scheme: w.c.Scheme()})
		w.ok(err)
		s.ops = append(s.ops, &Reconciler{Client: c, Live: c, Namespace: w.r.Namespace, Image: "gemel:1", Targets: s, Events: own.rec})
	}
	own.objects()
	return s
}

// calm starts the pair without faults.
func (s *stage) calm() {
	s.t.Helper()
	s.step()
	s.pod("a", "worker-1")
	s.pod("b", "worker-2")
	for range 3 {
		s.step()
	}
	if c := s.condition(v1alpha1.ConditionUpToDate); c.Status != "True" {
		s.t.Fatalf("%+v", c)
	}
	s.look()
}

// play is what Kubernetes does between two reconciles: it removes terminating pods and creates
// missing ones.
func (s *stage) play() {
	s.t.Helper()
	for _, n := range Nodes {
		p := &corev1.Pod{}
		err := s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: PodName(s.name, n)}, p)
		set := s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: NodeName(s.name, n)}, &appsv1.StatefulSet{})
		switch {
		case err == nil && !p.DeletionTimestamp.IsZero():
			s.fell(n, p)
			s.gone(n)
			s.setAway(n, true)
		case apierrors.IsNotFound(err) && set == nil:
			s.pod(n, "worker-"+n)
			s.setAway(n, false)
		}
	}
}

// fell checks that a deleted pod's node was drained and owned no LUN.
func (s *stage) fell(node string, p *corev1.Pod) {
	s.t.Helper()
	if s.seen[node][p.UID] || s.lun == "" || s.down[node] {
		s.seen[node][p.UID] = true
		return
	}
	s.seen[node][p.UID] = true
	if s.owner() == node {
		s.t.Errorf("node %s was taken down while it owned a LUN", node)
	}
	if !s.drains.earlier && s.drains.node() != node {
		s.t.Errorf("node %s was taken down while node %q was drained", node, s.drains.node())
	}
}

func (s *stage) setAway(node string, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away[node] = away
}

// look checks the invariants.
func (s *stage) look() {
	s.t.Helper()
	down := 0
	for _, n := range Nodes {
		p := &corev1.Pod{}
		err := s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: PodName(s.name, n)}, p)
		switch {
		case err == nil && p.DeletionTimestamp.IsZero():
			continue
		case err == nil:
			s.fell(n, p)
		case len(s.seen[n]) == 0:
			continue // never created
		}
		down++
	}
	if p := s.tryGet(); down > 1 && p != nil && p.DeletionTimestamp.IsZero() {
		s.t.Errorf("both nodes are down")
	}
	for what, o := range map[string]client.Object{"the authority": &corev1.Secret{}, "the record": &coordinationv1.Lease{}, "disk a": &corev1.PersistentVolumeClaim{}, "disk b": &corev1.PersistentVolumeClaim{}} {
		name := map[string]string{"the authority": AuthoritySecret(s.name), "the record": Base(s.name), "disk a": ClaimName(s.name, "a", 0), "disk b": ClaimName(s.name, "b", 0)}[what]
		if s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: name}, o) != nil {
			continue
		}
		if was, ok := s.born[what]; ok && was != o.GetUID() {
			s.t.Errorf("%s was created twice", what)
		}
		s.born[what] = o.GetUID()
	}
}

func (s *stage) tryGet() *v1alpha1.TargetPair {
	p := &v1alpha1.TargetPair{}
	if s.c.Get(s.ctx, client.ObjectKey{Name: s.name}, p) != nil {
		return nil
	}
	return p
}

// claims of the pair.
func (s *stage) claims() (out []string) {
	s.t.Helper()
	l := &corev1.PersistentVolumeClaimList{}
	s.ok(s.c.List(s.ctx, l, client.InNamespace(s.r.Namespace), client.MatchingLabels{v1alpha1.LabelPair: s.name}))
	for _, c := range l.Items {
		out = append(out, c.Name)
	}
	slices.Sort(out)
	return out
}

func (s *stage) reconcile(r *Reconciler) error {
	_, err := r.Reconcile(s.ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: s.name}})
	return err
}

// until runs operators until the expected end state is reached.
func (s *stage) until(sc *scene, turn func(i int) error) error {
	var err error
	began := time.Now()
	for i := 0; time.Since(began) < time.Minute; i++ {
		err = turn(i)
		s.look()
		s.play()
		s.look()
		if s.t.Failed() || s.ctx.Err() != nil {
			return errors.Join(err, s.ctx.Err())
		}
		if err == nil {
			if err = sc.after(s); err == nil {
				return nil
			}
		}
	}
	return err
}

// The operator crashes at its first write, the next operator at its second, and so on, until one
// completes; then from the first again. So it crashes at each write in each state of a pair, before
// the write and after it. In the end everything exists once, and the two nodes are never down at
// the same time.
func TestCrashAtEveryCall(t *testing.T) {
	w := newWorld(t, "crash")
	w.run()
	for i := range scenes {
		for _, landed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", scenes[i].name, landed), func(t *testing.T) { w.crash(t, &scenes[i], landed) })
		}
	}
}

func (w *world) crash(t *testing.T, sc *scene, landed bool) {
	t.Helper()
	p, err := flakyapi.New(w.as)
	w.ok(err)
	defer p.Close()
	x := *w
	x.t = t
	s := x.stage(fmt.Sprintf("%s-%v", sc.name, landed), p)
	defer s.createLUN(sc)()
	if sc.calm {
		s.calm()
	}
	sc.act(s)
	crashes, n, was := 0, 1, s.versions()
	err = s.until(sc, func(int) error {
		p.CrashAt(n, landed, nil)
		defer p.Reset()
		err := s.reconcile(s.ops[0])
		if !p.Crashed() {
			n = 1
			return err
		}
		crashes++
		s.ops[0].memory = memory{} // the next process knows nothing of what this one has applied
		if now := s.versions(); now != was {
			was = now // the state has changed: each call in it counts again
		} else {
			n++
		}
		return errCrashed
	})
	if err != nil || t.Failed() {
		t.Fatalf("after %d crashes: %v; %+v", crashes, err, s.tryGet())
	}
	t.Logf("%d crashes", crashes)
	if crashes < 10 {
		t.Errorf("only %d crashes", crashes)
	}
}

// versions of the pair and of its objects.
func (s *stage) versions() string {
	s.t.Helper()
	var out []string
	for _, o := range append(s.parts(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.r.Namespace, Name: AuthoritySecret(s.name)}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.r.Namespace, Name: ControlSecret(s.name)}}) {
		if s.c.Get(s.ctx, client.ObjectKeyFromObject(o), o) == nil {
			out = append(out, o.GetResourceVersion())
		}
	}
	if p := s.tryGet(); p != nil {
		out = append(out, p.ResourceVersion)
	}
	return fmt.Sprint(out, s.claims())
}

var errCrashed = errors.New("this operator has crashed")

// createLUN creates a LUN if the scene has one, and returns a function that deletes it.
func (s *stage) createLUN(sc *scene) func() {
	s.t.Helper()
	if !sc.lun {
		return func() {}
	}
	s.lun = uuid.NewString()
	_, err := s.pair.Client(0).CreateLUN(s.ctx, &targetv1.CreateLUNRequest{Uuid: s.lun, Name: s.name, SizeBytes: 1 << 20, PreferredNode: "a"})
	s.ok(err)
	return func() {
		_, err := s.pair.Client(0).DeleteLUN(s.ctx, &targetv1.DeleteLUNRequest{Uuid: s.lun})
		s.ok(err)
	}
}

// Two operators run at once, each with an API server that loses, repeats, delays and rejects calls:
// the same invariants hold.
func TestTwoOperatorsKeepTheInvariants(t *testing.T) {
	w := newWorld(t, "two")
	w.run()
	for i := range scenes {
		sc := &scenes[i]
		t.Run(sc.name, func(t *testing.T) {
			var proxies []*flakyapi.Proxy
			for range 2 {
				p, err := flakyapi.New(w.as)
				w.ok(err)
				defer p.Close()
				proxies = append(proxies, p)
			}
			x := *w
			x.t = t
			s := x.stage("two-"+sc.name, proxies...)
			defer s.createLUN(sc)()
			if sc.calm {
				s.calm()
			}
			sc.act(s)
			for i, p := range proxies {
				for j, f := range []flakyapi.Fault{{LoseResponse: true}, {Duplicate: true}, {LoseRequest: true}, {Answer: 409}, {Answer: 500}, {Delay: 50 * time.Millisecond}} {
					p.Add(flakyapi.Rule{Match: flakyapi.Match{Mutating: true}, Fault: f, Probability: .04, Seed: uint64(10*i + j)})
				}
				p.Add(flakyapi.Rule{Match: flakyapi.Match{Verbs: []string{"get", "list"}}, Fault: flakyapi.Fault{Answer: 503}, Probability: .03, Seed: uint64(i)})
			}
			ctx, stop := context.WithCancel(w.ctx)
			var both sync.WaitGroup
			for _, r := range s.ops {
				both.Go(func() {
					for ctx.Err() == nil {
						_, _ = r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: s.name}})
					}
				})
			}
			err := s.until(sc, func(int) error { return nil })
			stop()
			both.Wait()
			if err != nil || t.Failed() {
				t.Fatalf("%v; %+v", err, s.tryGet())
			}
			s.look()
		})
	}
}
