package sanity

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/attach/userspace/holder"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// credentials that this worker has on a pair, as the operator has them.
func (e *env) credentials(pair string) *chap.Credentials {
	e.t.Helper()
	var s corev1.Secret
	e.ok(e.api.Get(e.ctx, client.ObjectKey{Namespace: systemNamespace, Name: chap.SecretName(pair, e.nodeID())}, &s))
	c, err := chap.Of(&s)
	e.ok(err)
	return c
}

// connected returns how many paths of an attachment are up, and the errors of the others.
func (v *vol) connected() (n int, why string) {
	a, err := holder.Ask(v.e.ctx, v.folder(), holder.Request{Op: holder.OpStatus})
	if err != nil {
		return 0, err.Error()
	}
	for _, p := range a.Paths {
		if p.Connected {
			n++
		} else {
			why += p.LastError + " "
		}
	}
	return n, why
}

// A volume whose targets need CHAP: the plugin enrols when it stages, a volume in use needs no
// operator, and an attachment whose credentials were replaced gets the new ones before both targets
// have restarted. No file that stays has a secret.
func TestPluginEnrolsWhenItStages(t *testing.T) {
	needAPIServer(t)
	t.Setenv(backendVariable, "objects")
	e := start(t, 3*time.Minute)
	v := e.create("one", 320*mib, mounted("xfs"), nil)
	v.controllerPublish()
	pair := v.pub[attach.KeyPair]
	p := e.pair
	if pair == e.pair2.Name {
		p = e.pair2
	}
	if v.pub[attach.KeyCHAP] != v1alpha1.CHAPMutual || pair == "" {
		t.Fatalf("publish context %v", v.pub)
	}
	v.stage()
	v.publish()
	e.ok(v.write("before", "alpha"))
	first := e.credentials(pair)

	// The operator is down, and the plugin was restarted: a volume in use continues and is found to
	// be staged, a new volume waits.
	other := e.create("two", 64*mib, raw(writer), nil)
	other.controllerPublish()
	listen := e.operator.Enroll
	e.ok(e.operator.Stop())
	e.ok(e.plugin.Kill())
	e.ok(e.plugin.Start(e.ctx))
	e.ok(os.MkdirAll(other.staging, 0o755))
	err := other.tryStage()
	e.code(err, codes.Unavailable)
	if !strings.Contains(err.Error(), "gemel-operator") {
		t.Errorf("what to look at is not said: %v", err)
	}
	v.stage()
	e.ok(v.write("during", "beta"))
	// A target that restarts in this time gets the credentials that the holder has.
	e.ok(p.Kill(0))
	e.ok(p.StartNode(0))
	e.ok(harness.Wait(e.ctx, "both paths are up", func() (bool, string) { n, why := v.connected(); return n == 2, why }))
	e.ok(p.WaitInSync(e.ctx))
	e.operator = e.restart(listen)
	other.again(call{name: "stage", do: (*vol).tryStage})

	// An administrator deletes the credentials: one target after the other restarts, and there is
	// I/O all the time.
	e.ok(e.api.Delete(e.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: chap.SecretName(pair, e.nodeID())}}))
	e.ok(harness.Wait(e.ctx, "new credentials are mapped", func() (bool, string) {
		var lu v1alpha1.LogicalUnit
		e.ok(e.api.Get(e.ctx, client.ObjectKey{Name: v.id}, &lu))
		h := lu.Status.Hosts[0]
		return h.CHAPUser != first.User && h.CHAPUser != "", h.CHAPUser
	}))
	for i := range harness.Names {
		e.ok(p.Kill(i))
		e.ok(v.write("while"+strconv.Itoa(i), "gamma"))
		e.ok(p.StartNode(i))
		e.ok(p.WaitInSync(e.ctx))
		e.ok(harness.Wait(e.ctx, "both paths are up with the new credentials", func() (bool, string) { n, why := v.connected(); return n == 2, why }))
	}
	second := e.credentials(pair)
	for name, content := range map[string]string{"before": "alpha", "during": "beta", "while0": "gamma", "while1": "gamma"} {
		v.read(name, content)
	}

	shown := e.shown(v)
	for i := range harness.Names {
		b, err := os.ReadFile(p.LogFile(i))
		e.ok(err)
		shown += string(b)
	}
	for _, c := range []*chap.Credentials{first, second} {
		if strings.Contains(shown, c.Secret) || strings.Contains(shown, c.MutualSecret) {
			t.Errorf("a secret of %s shows in a file, an argument or the publish context", c.User)
		}
	}
	if first.User == second.User {
		t.Error("the credentials are the former ones")
	}
	other.unstage()
	other.controllerUnpublish()
	other.delete()
	v.down()
}
