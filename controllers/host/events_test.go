package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/claims"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/hostobject"
	"github.com/gemel-storage/gemel/internal/alua"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/indexed"
)

const luns = claims.Limit + 5

// The events are read back from the API server as kubectl describe does, and are written with the
// rights of the operator, which may not read claims.
func TestLostAndRestoredPathsAreEventsOfHostAndClaims(t *testing.T) {
	cfg := envtest.Config(t)
	s := envtest.Scheme(t)
	c, err := client.New(cfg, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	ctx, ns := t.Context(), envtest.Namespace(t, cfg)
	as := envtest.Operator(t, cfg, ns, "../../config/rbac")
	own, err := client.New(as, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	set, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	sink := events.NewBroadcaster(&events.EventSinkImpl{Interface: set.EventsV1()})
	if err := sink.StartRecordingToSinkWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Shutdown)

	const tiqn, host = "iqn.2026-11.storage.gemel:main.main-p7", "worker-7"
	tp := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "main-p7"}, Spec: v1alpha1.TargetPairSpec{Cluster: "main", Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
	err = errors.Join(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: host}}), c.Create(ctx, tp))
	tp.Status.TargetIQN = tiqn
	tp.Status.Nodes = []v1alpha1.NodeStatus{{Name: "a", Phase: "InSync"}, {Name: "b", Phase: "InSync"}}
	err = errors.Join(err, c.Status().Update(ctx, tp))
	for i := range luns {
		err = errors.Join(err, publish(ctx, c, fmt.Sprintf("events-%02d", i), ns, tp.Name))
	}
	if err != nil {
		t.Fatal(err)
	}
	now := start
	p := &pair{sessions: map[string]int{"a": 1, "b": 1}, asked: map[string]time.Time{"a": start, "b": start}}
	operator := func() *Reconciler {
		return &Reconciler{Client: indexed.Client(own), Live: own, Targets: p, Now: func() time.Time { return now }, Events: sink.NewRecorder(s, v1alpha1.OperatorManager)}
	}
	r := operator()
	connected := true
	w := hostobject.Worker{Node: host, IQN: iqn, AttachMode: "Kernel", Version: "v1", Ready: func() error { return nil }, Attached: func() (int, error) { return 1, nil },
		Paths: func(context.Context) ([]attach.Status, error) {
			return []attach.Status{{Attachment: attach.Attachment{VolumeID: "v1", TargetIQN: tiqn}, Paths: []attach.Path{{Portal: portalA, Connected: true, State: alua.Optimized}, {Portal: portalB, Connected: connected}}}}, nil
		}}
	look := func(after time.Duration, b bool) ctrl.Result {
		t.Helper()
		now, connected, p.sessions["b"] = now.Add(after), b, map[bool]int{true: 1}[b]
		if err := hostobject.Write(ctx, c, w); err != nil {
			t.Fatal(err)
		}
		res, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: host}})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	// of are the events of an object, which are waited for: "type reason note", sorted.
	of := func(kind, name string, want int) (out []string) {
		t.Helper()
		err := harness.Wait(ctx, "events of "+kind, func() (bool, string) {
			var l corev1.EventList
			if err := c.List(ctx, &l); err != nil {
				return false, err.Error()
			}
			out = nil
			for _, e := range l.Items {
				if e.InvolvedObject.Kind == kind && (name == "" || e.InvolvedObject.Name == name) && (kind == "Host" || e.InvolvedObject.UID != "") {
					out = append(out, e.Type+" "+e.Reason+" "+e.Message)
				}
			}
			return len(out) >= want, fmt.Sprint(len(out))
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(out)
		return out
	}

	look(0, true)
	if res := look(time.Second, false); res.RequeueAfter != settle {
		t.Errorf("the next look is after %v", res.RequeueAfter)
	}
	look(settle-time.Second, false)
	r = operator() // another operator continues
	before := &v1alpha1.Host{}
	if err := c.Get(ctx, client.ObjectKey{Name: host}, before); err != nil {
		t.Fatal(err)
	}
	look(time.Second, false)
	// A cache that does not have that yet makes no second event.
	r.Client = outdated{indexed.Client(own), before}
	if res, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: host}}); err != nil || res.RequeueAfter == 0 || res.RequeueAfter >= settle {
		t.Errorf("an outdated cache: %v, %v", res, err)
	}
	r = operator()
	if got := of("Host", host, 1); len(got) != 1 || !strings.HasPrefix(got[0], fmt.Sprintf("Warning HostRedundancyLost paths to pair main-p7 are missing; LUNs: %d, of which %d claims have this event: node b of main-p7", luns, claims.Limit)) {
		t.Fatalf("%q", got)
	}
	if got := of("PersistentVolumeClaim", "", claims.Limit); len(got) != claims.Limit || !strings.HasPrefix(got[0], "Warning HostRedundancyLost worker worker-7 lacks paths to pair main-p7: node b of main-p7 ("+portalB+") has no session") {
		t.Fatalf("%d: %q", len(got), got)
	}
	look(time.Minute, false)
	r = operator()
	look(time.Minute, false)
	look(time.Minute, true)
	if got := of("Host", host, 2); len(got) != 2 || !strings.HasPrefix(got[0], "Normal HostRedundancyRestored all paths to pair main-p7 are there again") {
		t.Fatalf("%q", got)
	}
	if got := of("PersistentVolumeClaim", "", 2*claims.Limit); len(got) != 2*claims.Limit || got[0] != "Normal HostRedundancyRestored worker worker-7 has all its paths to pair main-p7 again" {
		t.Fatalf("%d: %q", len(got), got)
	}

	// A node that is away is the trouble of the pair, which tells the claims.
	tp.Status.Nodes[1].Phase = "Joining"
	if err := c.Status().Update(ctx, tp); err != nil {
		t.Fatal(err)
	}
	look(time.Second, false)
	look(settle, false)
	if got := of("Host", host, 3); len(got) != 3 || !strings.Contains(strings.Join(got, "\n"), "does not serve or does not answer; the pair tells the claims") {
		t.Fatalf("%q", got)
	}
	look(time.Minute, true)
	if of("Host", host, 4); len(of("PersistentVolumeClaim", "", 2*claims.Limit)) != 2*claims.Limit {
		t.Error("claims were told of a node that is away")
	}
}

// outdated is a cache with a former state of a Host.
type outdated struct {
	client.Client
	host *v1alpha1.Host
}

func (o outdated) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if h, ok := into.(*v1alpha1.Host); ok {
		o.host.DeepCopyInto(h)
		return nil
	}
	return o.Client.Get(ctx, key, into, opts...)
}

// publish creates a LogicalUnit that is mapped to the worker, its volume, and its bound claim.
func publish(ctx context.Context, c client.Client, name, ns, pair string) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name,
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	err := c.Create(ctx, claim)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		ClaimRef:               &corev1.ObjectReference{Namespace: ns, Name: name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: name}}}}
	err = errors.Join(err, c.Create(ctx, pv))
	pv.Status.Phase = corev1.VolumeBound
	err = errors.Join(err, c.Status().Update(ctx, pv))
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "main", Size: resource.MustParse("1Gi"),
		Volume:    &v1alpha1.VolumeInfo{Name: name, PVC: name, Namespace: ns},
		Placement: &v1alpha1.Placement{Pair: pair, UUID: "00000000-0000-0000-0000-0000000000" + name[len(name)-2:]}}}
	err = errors.Join(err, c.Create(ctx, lu))
	lu.Status.Hosts = []v1alpha1.HostMapping{{IQN: iqn, TargetIQN: "iqn.x", Portals: []string{portalA}}}
	return errors.Join(err, c.Status().Update(ctx, lu))
}
