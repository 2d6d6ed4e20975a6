package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// realClient is a node's client of a real API server.
func realClient(t *testing.T, cfg *rest.Config, ns string, more ...string) *Client {
	t.Helper()
	c, err := New(cfg, Options{Namespace: ns, Name: "p0", Cluster: "c", Pair: "p0", Endpoints: more, Hedge: 50 * time.Millisecond, Timeout: 2 * time.Second,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.pool.close)
	return c
}

func createLease(t *testing.T, k kubernetes.Interface, ns string) *coordinationv1.Lease {
	t.Helper()
	l, err := k.CoordinationV1().Leases(ns).Create(context.Background(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "p0", Labels: map[string]string{LabelPair: "p0"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// What the API server is believed to do, asked of a real one.
func TestRealServer(t *testing.T) {
	cfg := envtest.Config(t)
	ctx := context.Background()
	ns := envtest.Namespace(t, cfg)
	k := kubernetes.NewForConfigOrDie(cfg)
	c := realClient(t, cfg, ns)
	if _, _, err := c.Get(ctx); !errors.Is(err, ErrNoLease) {
		t.Fatalf("no Lease: %v", err)
	}
	createLease(t, k, ns)
	_, v0, err := c.Get(ctx)
	if !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatalf("no record: %v", err)
	}
	v1, err := c.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	// The addresses that the API servers publish are taken, and answer.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if err = c.discover(ctx); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for range c.pool.order(time.Now()) {
		if _, v, err := c.Get(ctx); err != nil || v != v1 {
			t.Fatalf("%q %v from %s", v, err, c.pool.list[0].url)
		}
		c.pool.demote(c.pool.list[0])
	}
	// A successor of the same content has another version: what is late is barred.
	v2, err := c.CompareAndSwap(ctx, v1, record(1))
	if err != nil || v2 == v1 {
		t.Fatalf("no-op successor: %q %v", v2, err)
	}
	for _, v := range []string{"", v0, v1} {
		if _, err := c.CompareAndSwap(ctx, v, record(2)); !errors.Is(err, arbiter.ErrConflict) {
			t.Errorf("over %q: %v", v, err)
		}
	}
	// The operator's change of something else is a conflict, and is kept.
	l, err := k.CoordinationV1().Leases(ns).Get(ctx, "p0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.Labels["x"] = "y"
	if _, err = k.CoordinationV1().Leases(ns).Update(ctx, l, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = c.CompareAndSwap(ctx, v2, record(2)); !errors.Is(err, arbiter.ErrConflict) {
		t.Errorf("after another's change: %v", err)
	}
	got, v3, err := c.Get(ctx)
	if want := record(1); err != nil || !got.Equal(&want) {
		t.Fatalf("%+v %v", got, err)
	}
	v4, err := c.CompareAndSwap(ctx, v3, record(2, member(pair.B, 7)))
	if err != nil {
		t.Fatal(err)
	}
	if l, err = k.CoordinationV1().Leases(ns).Get(ctx, "p0", metav1.GetOptions{}); err != nil || l.Labels["x"] != "y" || *l.Spec.HolderIdentity != "b" ||
		*l.Spec.LeaseTransitions != 2 || time.Since(l.Spec.RenewTime.Time).Abs() > time.Minute {
		t.Errorf("%+v %v", l, err)
	}
	// A Lease that was deleted is not made again by a late update, and another one under its name
	// is another one.
	if err = k.CoordinationV1().Leases(ns).Delete(ctx, "p0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = c.CompareAndSwap(ctx, v4, record(3)); err == nil || errors.Is(err, arbiter.ErrConflict) {
		t.Errorf("deleted: %v", err)
	}
	if _, _, err = c.Get(ctx); !errors.Is(err, ErrNoLease) {
		t.Errorf("deleted: %v", err)
	}
	createLease(t, k, ns)
	if _, err = c.CompareAndSwap(ctx, v4, record(3)); err == nil {
		t.Error("another Lease under the same name was taken for the old one")
	}
	if _, _, err = c.Get(ctx); !errors.Is(err, arbiter.ErrNotFound) {
		t.Error(err)
	}
}

// try is one CompareAndSwap of the race. The nonce of its member is of no other.
type try struct {
	nonce uint64
	epoch uint64
	err   error
}

// Two nodes race for each epoch through proxies that lose, delay and repeat. What etcd has seen
// judges them: an epoch has one content, what was reported as written is there, what was reported
// as a conflict is not.
func TestRaceOfTwoNodesThroughFaultyProxies(t *testing.T) {
	const epochs = 200
	cfg := envtest.Config(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	ns := envtest.Namespace(t, cfg)
	k := kubernetes.NewForConfigOrDie(cfg)
	first := createLease(t, k, ns)
	w, err := k.CoordinationV1().Leases(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: first.ResourceVersion, FieldSelector: "metadata.name=p0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()

	var wg sync.WaitGroup
	var tries [2][]try
	var reached [2]atomic.Uint64
	var proxies []*flakyapi.Proxy
	for i := range 2 {
		// Each node has two API servers to ask, either flaky in its own way.
		one, err1 := flakyapi.New(cfg)
		if err1 != nil {
			t.Fatal(err1)
		}
		defer one.Close()
		other, err2 := one.Beside()
		if err2 != nil {
			t.Fatal(err2)
		}
		defer other.Close()
		for j, p := range []*flakyapi.Proxy{one, other} {
			flake(p, uint64(10*i+j))
			proxies = append(proxies, p)
		}
		c := realClient(t, one.Config(), ns, other.Config().Host)
		wg.Go(func() { tries[i] = raceOn(ctx, c, pair.Node(i), epochs, &reached) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.Fatal("out of time")
	}

	// What was written, in order, without gaps: the watch goes to etcd's history, not through a
	// proxy.
	final, _, err := realClient(t, cfg, ns).Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	last, err := k.CoordinationV1().Leases(ns).Get(ctx, "p0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	landed := map[uint64]int{}     // by the nonce of the try
	content := map[uint64]uint64{} // epoch → nonce
	tokens := map[string]bool{}
	epoch, writes, noops := uint64(0), 0, 0
	for ev := range w.ResultChan() {
		l, ok := ev.Object.(*coordinationv1.Lease)
		if !ok {
			t.Fatalf("%+v", ev)
		}
		rec, err := (&object{annotations: l.Annotations}).record("c", "p0")
		if err != nil {
			t.Fatal(err)
		}
		o := &object{annotations: l.Annotations}
		if tokens[o.token()] {
			t.Errorf("a write took effect twice at epoch %d", rec.Epoch)
		}
		tokens[o.token()] = true
		n := rec.Members[0].Incarnation.Nonce
		switch old, ok := content[rec.Epoch]; {
		case ok && old != n:
			t.Errorf("epoch %d has two contents", rec.Epoch)
		case ok:
			noops++
		case rec.Epoch != epoch+1:
			t.Errorf("epoch %d after %d", rec.Epoch, epoch)
		default:
			landed[n]++
		}
		content[rec.Epoch], epoch = n, rec.Epoch
		writes++
		if l.ResourceVersion == last.ResourceVersion {
			break
		}
	}
	if final.Epoch != epochs || epoch != epochs {
		t.Errorf("ended at epoch %d, the history at %d", final.Epoch, epoch)
	}
	count := map[string]int{}
	for i := range tries {
		for _, x := range tries[i] {
			n := landed[x.nonce]
			switch {
			case x.err == nil:
				count["won"]++
				if n != 1 {
					t.Errorf("node %v: epoch %d: reported as written, is not", pair.Node(i), x.epoch)
				}
			case errors.Is(x.err, arbiter.ErrConflict):
				count["conflict"]++
				if n != 0 {
					t.Errorf("node %v: epoch %d: reported as a conflict, was written", pair.Node(i), x.epoch)
				}
			case n != 0:
				count["unknown, written"]++
			default:
				count["unknown, not written"]++
			}
			if errors.Is(x.err, ErrSucceeded) {
				count["of these succeeded"]++
			}
		}
	}
	if count["won"]+count["unknown, written"] != epochs || count["conflict"] == 0 || count["unknown, written"] == 0 || count["unknown, not written"] == 0 {
		t.Errorf("the race was none: %v", count)
	}
	calls := 0
	for _, p := range proxies {
		all, _ := p.Calls()
		calls += all
	}
	t.Logf("%d epochs, %d writes in the history, %d of them successors of the same content; %v; %d requests", epochs, writes, noops, count, calls)
}

// raceOn writes one epoch after the other until the last one, as a node does: after an unknown
// outcome it reads, and bars what may be late with a successor of the same content.
func raceOn(ctx context.Context, c *Client, self pair.Node, epochs uint64, reached *[2]atomic.Uint64) (tries []try) {
	defer func() { reached[self].Store(epochs) }()
	doubt := false
	for n := uint64(1); ctx.Err() == nil; {
		rec, v, err := c.Get(ctx)
		switch {
		case errors.Is(err, arbiter.ErrNotFound):
			v = ""
		case err != nil:
			continue
		case rec.Epoch >= epochs:
			return tries
		}
		if doubt && v != "" {
			if _, err := c.CompareAndSwap(ctx, v, rec); err != nil {
				continue
			}
			doubt = false
			continue
		}
		// At every other epoch both have read it before either writes, unless the other one is held
		// up by its proxies. In between one may go on while the other has not heard yet that it has
		// won.
		reached[self].Store(rec.Epoch + 1)
		for limit := time.Now().Add(100 * time.Millisecond); rec.Epoch%2 == 0 && reached[self.Peer()].Load() <= rec.Epoch && time.Now().Before(limit); {
			runtime.Gosched()
		}
		x := try{nonce: 2*n + uint64(self), epoch: rec.Epoch + 1}
		n++
		_, x.err = c.CompareAndSwap(ctx, v, record(x.epoch, member(self, x.nonce)))
		doubt = x.err != nil && !errors.Is(x.err, arbiter.ErrConflict)
		tries = append(tries, x)
	}
	return append(tries, try{err: fmt.Errorf("out of time: %w", ctx.Err())})
}

// flake makes a proxy unreliable.
func flake(p *flakyapi.Proxy, seed uint64) {
	update, any := flakyapi.Match{Verbs: []string{"update"}}, flakyapi.Match{}
	p.Add(
		flakyapi.Rule{Match: update, Fault: flakyapi.Fault{Duplicate: true}, Probability: .15, Seed: seed},
		flakyapi.Rule{Match: update, Fault: flakyapi.Fault{LoseResponse: true}, Probability: .1, Seed: seed + 100},
		flakyapi.Rule{Match: update, Fault: flakyapi.Fault{LoseResponse: true, Silent: true}, Probability: .05, Seed: seed + 200},
		flakyapi.Rule{Match: update, Fault: flakyapi.Fault{Duplicate: true, LoseResponse: true}, Probability: .05, Seed: seed + 300},
		flakyapi.Rule{Match: update, Fault: flakyapi.Fault{Delay: 70 * time.Millisecond}, Probability: .1, Seed: seed + 400}, // beyond the hedge
		flakyapi.Rule{Match: any, Fault: flakyapi.Fault{LoseRequest: true}, Probability: .05, Seed: seed + 500},
		flakyapi.Rule{Match: any, Fault: flakyapi.Fault{LoseRequest: true, Silent: true}, Probability: .02, Seed: seed + 600},
		flakyapi.Rule{Match: any, Fault: flakyapi.Fault{Answer: 503}, Probability: .03, Seed: seed + 700},
		flakyapi.Rule{Match: any, Fault: flakyapi.Fault{Answer: 429}, Probability: .03, Seed: seed + 800},
		flakyapi.Rule{Match: update, Fault: flakyapi.Fault{Answer: 409}, Probability: .03, Seed: seed + 900},
	)
}
