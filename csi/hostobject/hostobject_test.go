package hostobject

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/alua"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m, "../../config/crd/bases") }

func TestHostIsWrittenIfChanged(t *testing.T) {
	cfg := envtest.Config(t)
	c, err := client.New(cfg, client.Options{Scheme: envtest.Scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	w := Worker{Node: "worker-1", IQN: "iqn.2026-11.storage.gemel:node.worker-1", MachineID: "m", AttachMode: "Userspace", Why: "it was asked for", Version: "v1",
		Ready: func() error { return nil }, Attached: func() (int, error) { return 2, nil }, MaxLUNs: 128}
	if err := Write(ctx, c, w); err == nil {
		t.Fatal("written for a node that does not exist")
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", Labels: map[string]string{"topology.kubernetes.io/zone": "z", "x": "y"}}}
	if err := c.Create(ctx, node); err != nil {
		t.Fatal(err)
	}
	get := func() *v1alpha1.Host {
		t.Helper()
		var h v1alpha1.Host
		if err := c.Get(ctx, client.ObjectKey{Name: "worker-1"}, &h); err != nil {
			t.Fatal(err)
		}
		return &h
	}
	write := func() *v1alpha1.Host {
		t.Helper()
		if err := Write(ctx, c, w); err != nil {
			t.Fatal(err)
		}
		return get()
	}
	h := write()
	if h.Spec.IQN != w.IQN || h.Spec.MachineID != "m" || h.Spec.AttachMode != "Userspace" || len(h.Spec.Topology) != 1 || h.Spec.MaxLUNs != 128 || h.Status.Attached != 2 ||
		h.Status.Version != "v1" || !meta.IsStatusConditionTrue(h.Status.Conditions, "Ready") || len(h.OwnerReferences) != 1 {
		t.Fatalf("%+v", h)
	}
	if m := meta.FindStatusCondition(h.Status.Conditions, "Ready").Message; !strings.HasSuffix(m, " (Userspace: it was asked for)") {
		t.Errorf("the message lacks the reason for the mode: %s", m)
	}
	if again := write(); again.ResourceVersion != h.ResourceVersion {
		t.Error("written although nothing has changed")
	}
	// Paths are written if they have changed.
	paths := []attach.Path{{Portal: "10.0.2.1:3260", Connected: true, State: alua.NonOptimized}, {Portal: "10.0.1.1:3260", Connected: true, Current: true, State: alua.Optimized}}
	lost := []attach.Path{{Portal: "10.0.1.1:3260", Connected: true, State: alua.Optimized}, {Portal: "10.0.2.1:3260", LastError: "no session"}}
	statuses := []attach.Status{{Attachment: attach.Attachment{VolumeID: "v2", TargetIQN: "iqn.b"}, Paths: paths}, {Attachment: attach.Attachment{VolumeID: "v1", TargetIQN: "iqn.a"}, Paths: paths},
		{Attachment: attach.Attachment{VolumeID: "v3", TargetIQN: "iqn.b"}, Paths: paths}}
	w.Paths = func(context.Context) ([]attach.Status, error) { return statuses, nil }
	h = write()
	one := func(n int32, err string, connected int32) []v1alpha1.HostPortal {
		return []v1alpha1.HostPortal{{Portal: "10.0.1.1:3260", Connected: n, Optimized: n}, {Portal: "10.0.2.1:3260", Connected: connected, NonOptimized: connected, LastError: err}}
	}
	if want := []v1alpha1.HostPaths{{Target: "iqn.a", LUNs: 1, Portals: one(1, "", 1)}, {Target: "iqn.b", LUNs: 2, Portals: one(2, "", 2)}}; !equality.Semantic.DeepEqual(h.Status.Worker, want) {
		t.Fatalf("%+v", h.Status.Worker)
	}
	slices.Reverse(statuses)
	if again := write(); again.ResourceVersion != h.ResourceVersion {
		t.Error("written although only the order has changed")
	}
	statuses[0].Paths = lost
	h = write()
	if want := []v1alpha1.HostPaths{{Target: "iqn.a", LUNs: 1, Portals: one(1, "", 1)}, {Target: "iqn.b", LUNs: 2, Portals: one(2, "no session", 1)}}; !equality.Semantic.DeepEqual(h.Status.Worker, want) {
		t.Fatalf("%+v", h.Status.Worker)
	}
	// Several sessions to a portal count once: it reaches the LUN as long as one of them does.
	statuses = []attach.Status{{Attachment: attach.Attachment{VolumeID: "v1", TargetIQN: "iqn.a", Sessions: 2}, Paths: []attach.Path{
		{Portal: "10.0.1.1:3260", Connected: true, State: alua.Optimized}, {Portal: "10.0.1.1:3260", Session: 1, Connected: true, State: alua.Optimized},
		{Portal: "10.0.2.1:3260", LastError: "gone"}, {Portal: "10.0.2.1:3260", Session: 1, LastError: "gone too"}}}}
	h = write()
	if want := []v1alpha1.HostPaths{{Target: "iqn.a", LUNs: 1, Portals: []v1alpha1.HostPortal{{Portal: "10.0.1.1:3260", Connected: 1, Optimized: 1}, {Portal: "10.0.2.1:3260", LastError: "gone"}}}}; !equality.Semantic.DeepEqual(h.Status.Worker, want) {
		t.Errorf("%+v", h.Status.Worker)
	}
	// A striped volume counts with its LUNs: a portal that reaches one of them lacks the others.
	statuses = []attach.Status{{Attachment: attach.Attachment{VolumeID: "v1", TargetIQN: "iqn.a", Stripe: 64 << 10, Legs: make([]attach.Leg, 2)},
		Paths: []attach.Path{{Portal: "10.0.1.1:3260", Connected: true, State: alua.Optimized}, {Leg: 1, Portal: "10.0.1.1:3260", LastError: "gone"}}}}
	h = write()
	if want := []v1alpha1.HostPaths{{Target: "iqn.a", LUNs: 2, Portals: []v1alpha1.HostPortal{{Portal: "10.0.1.1:3260", Connected: 1, Optimized: 1, LastError: "gone"}}}}; !equality.Semantic.DeepEqual(h.Status.Worker, want) {
		t.Fatalf("%+v", h.Status.Worker)
	}
	statuses = nil
	if h = write(); len(h.Status.Worker) > 0 {
		t.Fatalf("%+v", h.Status.Worker)
	}
	// Another iSCSI name, the operator's part of the status, and a machine that cannot attach.
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: "Connected", Status: "True", Reason: "Ready"})
	if err := c.Status().Update(ctx, h, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
		t.Fatal(err)
	}
	w.IQN += "-2"
	w.Ready = func() error { return errors.New("the node service lacks /dev/fuse") }
	h = write()
	ready := meta.FindStatusCondition(h.Status.Conditions, "Ready")
	if h.Spec.IQN != w.IQN || ready.Status != "False" || ready.Message != "the node service lacks /dev/fuse (Userspace: it was asked for)" || h.Status.ObservedGeneration != h.Generation ||
		!meta.IsStatusConditionTrue(h.Status.Conditions, "Connected") {
		t.Fatalf("%+v", h.Status)
	}
}
