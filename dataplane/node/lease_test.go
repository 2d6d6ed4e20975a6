package node

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gemel-storage/gemel/dataplane/arbiter/lease"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// A pair whose record is a Lease: founded, one node leaves and comes back while the API loses
// answers, then the API is away: nothing changes while both serve, and a node that is left by the
// other waits for it.
func TestPairOnALease(t *testing.T) {
	cfg := envtest.Config(t)
	ns := envtest.Namespace(t, cfg)
	api := kubernetes.NewForConfigOrDie(cfg).CoordinationV1().Leases(ns)
	p := newTestPair(t)
	if _, err := api.Create(p.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "p0", Labels: map[string]string{lease.LabelPair: "p0"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var proxies [2]*flakyapi.Proxy
	for i := range proxies {
		proxy, err := flakyapi.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Close)
		proxies[i] = proxy
		p.cfg[i].Arbiter, p.cfg[i].Kubeconfig = "lease:"+ns+"/p0", envtest.Kubeconfig(t, proxy.Config())
		update := flakyapi.Match{Verbs: []string{"update"}}
		proxy.Add(flakyapi.Rule{Match: update, Fault: flakyapi.Fault{LoseResponse: true}, Probability: .3, Seed: uint64(i)},
			flakyapi.Rule{Match: update, Fault: flakyapi.Fault{Duplicate: true}, Probability: .3, Seed: uint64(2 + i)},
			flakyapi.Rule{Fault: flakyapi.Fault{Answer: 503}, Probability: .2, Seed: uint64(4 + i)})
	}
	holder := func(want string, epoch int32) {
		t.Helper()
		p.until("the Lease names "+want, func() bool {
			l, err := api.Get(p.ctx, "p0", metav1.GetOptions{})
			return err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == want && *l.Spec.LeaseTransitions == epoch
		})
	}
	p.startBoth()
	holder("a,b", 1)
	if err := p.stop(1); err != nil {
		t.Fatal(err)
	}
	holder("a", 2)
	p.start(1)
	p.inSync()
	holder("a,b", 3)
	if _, body := p.get(0, "/metrics"); !strings.Contains(body, `gemel_arbiter_attempts_total{outcome="ok",verb="get"}`) || !strings.Contains(body, `gemel_arbiter_attempt_seconds_count{verb="update"}`) {
		t.Error("/metrics lacks the arbiter's attempts")
	}

	for _, proxy := range proxies {
		proxy.Reset()
		proxy.Add(flakyapi.Rule{Fault: flakyapi.Fault{LoseRequest: true, Silent: true}})
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // two leases
		for i := range p.nodes {
			if v := p.nodes[i].View(); !v.Serving {
				t.Fatalf("node %d: %v %s", i, v.Phase, v.Reason)
			}
		}
	}
	if err := p.stop(1); err != nil {
		t.Fatal(err)
	}
	p.until("the reason names the arbiter", func() bool {
		v := p.nodes[0].View()
		return v.Phase == pair.Paired && !v.Serving && strings.Contains(v.Reason, "the arbiter does not answer")
	})
	holder("a,b", 3)
	proxies[0].Reset()
	p.until("node a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
	holder("a", 4)
}
