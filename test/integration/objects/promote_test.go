package objects

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/kubectlgemel"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// The only member is lost, and the other node is promoted: not by mistake, not while the member may
// be alive, and not without the flag that accepts the loss.
func TestPromoteTheOtherNode(t *testing.T) {
	r := start(t, 2*time.Minute)
	namespace := envtest.Namespace(t, r.cfg)
	promote := func(node string, words ...string) (string, error) {
		t.Helper()
		c, err := client.New(r.cfg, client.Options{Scheme: kubectlgemel.Scheme()})
		r.ok(err)
		var out bytes.Buffer
		m := &kubectlgemel.Promotion{Client: c, Namespace: namespace, Control: r.control, Out: &out}
		for _, w := range words {
			m.AcceptLoss, m.OtherStopped = m.AcceptLoss || w == "--accept-loss", m.OtherStopped || w == "--other-stopped"
		}
		err = m.Run(r.ctx, harness.PairName, node)
		return out.String(), err
	}
	refused := func(want, node string, words ...string) {
		t.Helper()
		if out, err := promote(node, words...); !errors.Is(err, kubectlgemel.ErrPromote) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v is not %q:\n%s", err, want, out)
		}
	}
	record := &coordinationv1.Lease{}
	record.Namespace, record.Name = namespace, pair.Base(harness.PairName)
	refused(`NODE is "c"`, "c")
	refused("already serves", "a", "--accept-loss", "--other-stopped")
	r.ok(r.pair.Term(0))
	r.ok(r.pair.WaitPhase(r.ctx, 1, targetv1.Phase_PHASE_ALONE))
	r.ok(r.pair.Kill(1))
	refused("cannot be reached", "b") // it is what is down
	r.ok(r.pair.StartNode(0))
	r.ok(r.pair.WaitPhase(r.ctx, 0, targetv1.Phase_PHASE_JOINING))
	refused("make sure that its process or its worker is stopped", "a", "--accept-loss")
	refused("does not exist: restore it", "a", "--other-stopped")

	r.ok(r.c.Create(r.ctx, &coordinationv1.Lease{ObjectMeta: record.ObjectMeta}))
	refused("repeat the command with --accept-loss", "a", "--other-stopped")
	r.ok(r.c.Delete(r.ctx, record))

	// The pod of the other node: its process, if it is there, has fenced itself for good.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pair.PodName(harness.PairName, "b")},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "target", Image: "gemel:1"}}}}
	r.ok(client.IgnoreAlreadyExists(r.c.Create(r.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})))
	r.ok(r.c.Create(r.ctx, pod))
	out, err := promote("a", "--other-stopped", "--accept-loss")
	if err != nil || !strings.Contains(out, "takes over") || !strings.Contains(out, "node b is restarted") {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := r.c.Get(r.ctx, client.ObjectKeyFromObject(pod), pod); err == nil && pod.DeletionTimestamp.IsZero() {
		t.Error("the pod of the other node was not restarted")
	}
	r.ok(r.c.Get(r.ctx, client.ObjectKeyFromObject(record), record))
	if record.Labels[v1alpha1.LabelPair] != harness.PairName {
		t.Errorf("%+v", record)
	}
	r.ok(r.pair.WaitPhase(r.ctx, 0, targetv1.Phase_PHASE_ALONE))
	r.ok(r.pair.StartNode(1))
	r.ok(r.pair.WaitInSync(r.ctx))
	refused("already serves", "b", "--accept-loss")
}
