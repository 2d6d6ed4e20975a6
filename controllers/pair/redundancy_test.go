package pair

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// What is known is said: a node that reports that both are in sync is believed, and it is the
// operator that does not reach the other one.
func TestInSyncWhileTheOperatorDoesNotReachANode(t *testing.T) {
	in, alone := &targetv1.Status{Phase: targetv1.Phase_PHASE_IN_SYNC}, &targetv1.Status{Phase: targetv1.Phase_PHASE_ALONE}
	for _, c := range []struct {
		name   string
		a, b   *targetv1.Status
		status metav1.ConditionStatus
		reason string
		says   string
	}{
		{"both answer", in, in, "True", "Ready", "both nodes hold every acknowledged write"},
		{"b does not answer", in, nil, "True", "NodeUnreachable", "as node a reports; the operator cannot reach node b: the node has no pod"},
		{"a does not answer", nil, in, "True", "NodeUnreachable", "as node b reports; the operator cannot reach node a"},
		{"b is gone", alone, nil, "False", "Degraded", "node a is Alone; node b: the node has no pod"},
		{"none answers", nil, nil, "False", "Degraded", "node a: the node has no pod"},
		{"b joins", in, &targetv1.Status{Phase: targetv1.Phase_PHASE_JOINING}, "False", "Degraded", "node b is Joining"},
	} {
		v := &view{nodes: [2]nodeView{{name: "a", status: c.a}, {name: "b", status: c.b}}}
		got := conditions(v, nil)
		if x := meta.FindStatusCondition(got, v1alpha1.ConditionInSync); x.Status != c.status || x.Reason != c.reason || !strings.Contains(x.Message, c.says) {
			t.Errorf("%s: %+v", c.name, x)
		}
		if answered := c.a != nil && c.b != nil; meta.IsStatusConditionTrue(got, v1alpha1.ConditionReachable) != answered {
			t.Errorf("%s: Reachable is wrong", c.name)
		}
		if c.status == "True" && c.reason != "Ready" && v.inSync() {
			t.Errorf("%s: the operator would restart a node", c.name)
		}
	}
}

func redundancyEvents(all []string) (out []string) {
	for _, e := range all {
		if strings.Contains(e, " Redundancy") {
			out = append(out, e)
		}
	}
	return out
}

// A real pair loses a node for longer than a minute, and gets it back: the pair and the claim that
// is in use have one event each, whichever operator looks.
func TestLostNodeIsAnEventOfClaimsInUse(t *testing.T) {
	w := newWorld(t, "redundancy")
	w.run()
	now := time.Now()
	w.r.Now = func() time.Time { return now }
	for _, name := range []string{"redundancy-used", "redundancy-idle"} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: name, UID: "u-1"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: name}}}}
		w.ok(w.c.Create(w.ctx, pv))
		pv.Status.Phase = corev1.VolumeBound
		w.ok(w.c.Status().Update(w.ctx, pv))
		id := "00000000-0000-0000-0000-0000000000a1"
		if strings.HasSuffix(name, "idle") {
			id = "00000000-0000-0000-0000-0000000000a2"
		}
		lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Cluster: w.name, Size: resource.MustParse("4Mi"),
			Volume: &v1alpha1.VolumeInfo{Name: name, Namespace: "default"}, Placement: &v1alpha1.Placement{Pair: w.name, UUID: id}}}
		w.ok(w.c.Create(w.ctx, lu))
		if strings.HasSuffix(name, "used") {
			lu.Status.Hosts = []v1alpha1.HostMapping{{IQN: "iqn.2026-11.x:h", TargetIQN: "iqn.x", Portals: []string{"10.0.0.1:3260"}}}
			w.ok(w.c.Status().Update(w.ctx, lu))
		}
	}
	w.step()
	w.pod("a", "worker-1")
	w.pod("b", "worker-2")
	insync := func(want string) {
		t.Helper()
		w.ok(harness.Wait(w.ctx, "InSync is "+want, func() (bool, string) {
			w.step()
			c := w.condition(v1alpha1.ConditionInSync)
			return string(c.Status) == want && w.condition(v1alpha1.ConditionReady).Status == "True", c.Message
		}))
	}
	insync("True")
	w.events()
	w.ok(w.pair.Kill(1))
	insync("False")
	now = time.Now().Add(aloneAfter - 5*time.Second)
	w.step()
	if got := redundancyEvents(w.events()); len(got) != 0 || w.get().Status.RedundancyLost {
		t.Fatalf("too early: %q", got)
	}
	now = time.Now().Add(aloneAfter + time.Second)
	w.step()
	got := redundancyEvents(w.events())
	if len(got) != 2 || !strings.HasPrefix(got[0], "Warning RedundancyLost pair redundancy serves the volume from one node only") || !strings.Contains(got[1], "LUNs in use: 1, of which 1 claims have this event") || !w.get().Status.RedundancyLost {
		t.Fatalf("%q", got)
	}
	w.r = &Reconciler{Client: w.r.Client, Live: w.r.Live, Namespace: w.r.Namespace, Image: w.r.Image, Targets: w, Events: w.rec, Now: w.r.Now}
	w.step()
	w.step()
	if got := redundancyEvents(w.events()); len(got) != 0 {
		t.Fatalf("another operator says it again: %q", got)
	}
	w.ok(w.pair.StartNode(1))
	insync("True")
	got = redundancyEvents(w.events())
	if len(got) != 2 || !strings.HasPrefix(got[0], "Normal RedundancyRestored pair redundancy: both nodes hold all data of the volume again") || w.get().Status.RedundancyLost {
		t.Fatalf("%q", got)
	}

	// The operator's way to a node is cut: the pair has lost nothing.
	w.down["b"] = true
	w.step()
	now = now.Add(time.Hour)
	w.step()
	if c := w.condition(v1alpha1.ConditionInSync); c.Status != "True" || c.Reason != v1alpha1.ReasonUnreachable || w.get().Status.RedundancyLost {
		t.Fatalf("%+v", c)
	}
	if c := w.condition(v1alpha1.ConditionReachable); c.Status != "False" {
		t.Errorf("%+v", c)
	}
}
