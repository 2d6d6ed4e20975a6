package objects

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/enroll"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// guarded is a rig with CHAP credentials in a namespace of its own, and workers that enrol.
type guarded struct {
	*rig
	namespace string
	operator  *operator.Operator
}

// guard runs the operator, with its rights, for a cluster whose hosts need CHAP or not.
func (r *rig) guard(mode string, more ...*harness.Pair) *guarded {
	r.Helper()
	g := &guarded{rig: r, namespace: envtest.Namespace(r.T, r.cfg)}
	r.ok(operator.AddCluster(r.ctx, r.c, mode))
	r.Cleanup(func() {
		o := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: operator.Cluster}}
		_ = r.c.Delete(context.Background(), o)
		_ = r.c.DeleteAllOf(context.Background(), &v1alpha1.Host{})
	})
	wrap, err := operator.Several(r.c, more...)
	r.ok(err)
	g.operator, err = operator.StartWith(r.ctx, envtest.Operator(r.T, r.cfg, g.namespace, "../../../config/rbac"), r.pair, wrap, operator.Enrolment{Namespace: g.namespace})
	r.ok(err)
	r.Cleanup(func() {
		if err := g.operator.Stop(); err != nil {
			r.Errorf("stop of the operator: %v", err)
		}
	})
	return g
}

// worker makes a worker with its Host, and gives its way to the operator.
func (g *guarded) worker(name, iqn string) *enroll.Client {
	g.Helper()
	w, err := operator.Worker(g.ctx, g.cfg, g.namespace, name, g.TempDir())
	g.ok(err)
	w.Endpoint = g.operator.Enroll
	g.ok(g.c.Create(g.ctx, &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HostSpec{IQN: iqn, AttachMode: "Userspace"}}))
	return w
}

// ask enrols until the operator has an answer: its cache may be a moment behind.
func (g *guarded) ask(w *enroll.Client, pair string, good func(enroll.Answer) bool) (a enroll.Answer) {
	g.Helper()
	g.ok(harness.Wait(g.ctx, "credentials on "+pair, func() (bool, string) {
		var err error
		a, err = w.Enroll(g.ctx, pair)
		return err == nil && good(a), fmt.Sprint(err)
	}))
	return a
}

func given(a enroll.Answer) bool { return a.User != "" }

// attach publishes a volume.
func (g *guarded) attach(id, host string) attach.Attachment {
	g.Helper()
	a, err := g.b.Publish(g.ctx, backend.Publish{VolumeID: id, HostIQN: host, Exclusive: true})
	g.ok(err)
	return a
}

func keys(c enroll.Answer) (auth, mutual *initiator.CHAP) {
	if c.User == "" {
		return nil, nil
	}
	return &initiator.CHAP{User: c.User, Secret: c.Secret}, &initiator.CHAP{User: c.MutualUser, Secret: c.MutualSecret}
}

// login logs in over a portal of an attachment and out again.
func (g *guarded) login(a attach.Attachment, portal int, c enroll.Answer) error {
	auth, mutual := keys(c)
	s, err := initiator.Login(g.ctx, initiator.SessionConfig{InitiatorName: a.HostIQN, Target: a.TargetIQN, Portal: a.Portals[portal], Auth: auth, MutualAuth: mutual})
	if err == nil {
		err = s.Logout(g.ctx)
	}
	return err
}

// open is a device over both nodes, as a holder has it.
func (g *guarded) open(a attach.Attachment, c enroll.Answer) *initiator.Device {
	g.Helper()
	auth, mutual := keys(c)
	d, err := initiator.Open(g.ctx, initiator.Config{InitiatorName: a.HostIQN, Target: a.TargetIQN, Portals: a.Portals, LUN: a.LUN, WWID: a.WWID, Auth: auth, MutualAuth: mutual})
	g.ok(err)
	g.Cleanup(func() { _ = d.Close(context.Background()) })
	return d
}

func (g *guarded) write(d *initiator.Device) {
	g.Helper()
	if _, err := d.WriteAt(g.ctx, make([]byte, 4096), 0); err != nil {
		g.Fatal(err)
	}
}

func (g *guarded) secrets() (out []corev1.Secret) {
	g.Helper()
	var l corev1.SecretList
	g.ok(g.c.List(g.ctx, &l, client.InNamespace(g.namespace), client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentCHAP}))
	return l.Items
}
