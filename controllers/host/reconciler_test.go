package host

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/hostobject"
	"github.com/gemel-storage/gemel/internal/alua"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/indexed"
)

func TestMain(m *testing.M) { envtest.Main(m, "../../config/crd/bases") }

const (
	iqn     = "iqn.2026-11.storage.gemel:node.worker-1"
	target  = "iqn.2026-11.storage.gemel:main.main-p0"
	portalA = "10.0.1.1:3260"
	portalB = "10.0.2.1:3260"
)

// start is the time of the nodes' clocks.
var start = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

// pair simulates both nodes.
type pair struct {
	sessions map[string]int // by node; -1: it does not answer
	asked    map[string]time.Time
}

type node struct {
	targetv1.TargetServiceClient
	p    *pair
	name string
}

func (p *pair) Node(_ context.Context, _ *v1alpha1.TargetPair, name string) (targetv1.TargetServiceClient, error) {
	return &node{p: p, name: name}, nil
}

func (n *node) ListSessions(_ context.Context, q *targetv1.ListSessionsRequest, _ ...grpc.CallOption) (*targetv1.ListSessionsResponse, error) {
	if n.p.sessions[n.name] < 0 {
		return nil, status.Error(codes.Unavailable, "connection refused")
	}
	if q.HostIqn != iqn {
		return nil, status.Error(codes.InvalidArgument, q.HostIqn)
	}
	a := &targetv1.ListSessionsResponse{Node: n.name, Time: timestamppb.New(start),
		Portal: &targetv1.Portal{Node: n.name, Address: map[string]string{"a": portalA, "b": portalB}[n.name]}}
	for range n.p.sessions[n.name] {
		s := &targetv1.Session{HostIqn: iqn, Since: timestamppb.New(start.Add(-time.Hour))}
		if t, ok := n.p.asked[n.name]; ok {
			s.LastRtpg = timestamppb.New(t)
		}
		a.Sessions = append(a.Sessions, s)
	}
	return a, nil
}

// Worker and operator each write their part of the status, neither removes the other's, and
// unchanged parts are not written.
func TestWorkerAndOperatorWriteTheirPartsOfTheStatus(t *testing.T) {
	cfg := envtest.Config(t)
	c, err := client.New(cfg, client.Options{Scheme: envtest.Scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	own, err := client.New(envtest.Operator(t, cfg, envtest.Namespace(t, cfg), "../../config/rbac"), client.Options{Scheme: envtest.Scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	tp := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "main-p0"}, Spec: v1alpha1.TargetPairSpec{Cluster: "main", Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
	err = errors.Join(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}), c.Create(ctx, tp))
	tp.Status.TargetIQN = target
	if err = errors.Join(err, c.Status().Update(ctx, tp)); err != nil {
		t.Fatal(err)
	}
	p := &pair{sessions: map[string]int{"a": 1, "b": 1}, asked: map[string]time.Time{"a": start, "b": start}}
	r := &Reconciler{Client: indexed.Client(own), Live: own, Targets: p, Events: events.NewFakeRecorder(100)}
	whole := []attach.Path{{Portal: portalA, Connected: true, State: alua.Optimized}, {Portal: portalB, Connected: true, State: alua.NonOptimized}}
	lost := []attach.Path{{Portal: portalA, Connected: true}, {Portal: portalB, LastError: "no session"}}
	paths := whole
	w := hostobject.Worker{Node: "worker-1", IQN: iqn, AttachMode: "Kernel", Version: "v1", Ready: func() error { return nil }, Attached: func() (int, error) { return 1, nil },
		Paths: func(context.Context) ([]attach.Status, error) {
			if paths == nil {
				return nil, nil
			}
			return []attach.Status{{Attachment: attach.Attachment{VolumeID: "v1", TargetIQN: target}, Paths: paths}}, nil
		}}
	key := client.ObjectKey{Name: "worker-1"}
	look := func(writes bool) (*v1alpha1.Host, *metav1.Condition) {
		t.Helper()
		if writes {
			if err := hostobject.Write(ctx, c, w); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		h := &v1alpha1.Host{}
		if err := c.Get(ctx, key, h); err != nil {
			t.Fatal(err)
		}
		if !meta.IsStatusConditionTrue(h.Status.Conditions, v1alpha1.ConditionReady) {
			t.Fatalf("the worker's condition is gone: %+v", h.Status)
		}
		return h, meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionPathsComplete)
	}
	h, is := look(true)
	want := []v1alpha1.HostSessions{{Target: target, Pair: "main-p0", Nodes: []v1alpha1.HostSession{
		{Node: "a", Portal: portalA, Sessions: 1, LastRTPG: &metav1.Time{Time: start}}, {Node: "b", Portal: portalB, Sessions: 1, LastRTPG: &metav1.Time{Time: start}}}, Redundancy: "Complete"}}
	if is.Status != "True" || !equality.Semantic.DeepEqual(h.Status.Targets, want) || len(h.Status.Worker) != 1 {
		t.Fatalf("%+v", h.Status)
	}
	if h.Spec.Profile != "Auto" || h.Status.Profile != "Linux" || h.Status.ProfileReason != "the iSCSI name is one of a worker with Gemel's node plugin" {
		t.Errorf("profile %q, %q: %s", h.Spec.Profile, h.Status.Profile, h.Status.ProfileReason)
	}
	p.asked = map[string]time.Time{"a": start.Add(exactness - time.Second), "b": start.Add(time.Second)}
	if again, _ := look(true); again.ResourceVersion != h.ResourceVersion {
		t.Error("written although nothing has changed")
	}
	p.asked["a"] = start.Add(exactness)
	if h, _ = look(false); !h.Status.Targets[0].Nodes[0].LastRTPG.Time.Equal(p.asked["a"]) || !h.Status.Targets[0].Nodes[1].LastRTPG.Time.Equal(start) {
		t.Fatalf("ten minutes later: %+v", h.Status.Targets)
	}
	p.asked["b"] = start.Add(-silence)
	if h, is = look(false); is.Reason != "NotAskedForTargetPortGroups" || !strings.Contains(is.Message, "node b of main-p0 ("+portalB+")") || strings.Contains(is.Message, "node a") ||
		!h.Status.Targets[0].Nodes[1].LastRTPG.Time.Equal(p.asked["b"]) {
		t.Fatalf("%+v", h.Status)
	}
	if again, _ := look(false); again.ResourceVersion != h.ResourceVersion {
		t.Error("written without new requests")
	}
	p.asked["b"] = start
	paths, p.sessions["b"] = lost, 0
	if h, is = look(true); is.Status != "False" || is.Reason != "HostRedundancyLost" || h.Status.Targets[0].Nodes[1].Sessions != 0 ||
		h.Status.Targets[0].Nodes[1].LastRTPG == nil || len(h.Status.Worker) != 1 {
		t.Fatalf("%+v", h.Status)
	}
	p.sessions["b"] = 1
	if _, is = look(false); is.Reason != "PathsNotDiscovered" {
		t.Fatal(is)
	}
	p.sessions["b"] = -1
	if h, is = look(false); is.Reason != "HostRedundancyLost" || !strings.Contains(h.Status.Targets[0].Nodes[1].Error, "connection refused") {
		t.Fatalf("%+v", h.Status)
	}
	h.Spec.Profile = "QEMU" // the plugin leaves it
	if err := c.Update(ctx, h); err != nil {
		t.Fatal(err)
	}
	if h, _ = look(true); h.Spec.Profile != "QEMU" || h.Status.Profile != "QEMU" || h.Status.ProfileReason != "spec.profile" {
		t.Errorf("%+v", h)
	}
	paths = nil
	if h, is = look(true); is.Status != "True" || is.Message != "no LUN is attached" || len(h.Status.Targets)+len(h.Status.Worker) > 0 {
		t.Fatalf("%+v", h.Status)
	}
	if _, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Name: "nobody"}}); err != nil {
		t.Fatal(err)
	}
}

func TestPathsCompleteComparesBothSides(t *testing.T) {
	worker := func(a, b int32, portals ...string) []v1alpha1.HostPaths {
		w := v1alpha1.HostPaths{Target: target, LUNs: 3, Portals: []v1alpha1.HostPortal{{Portal: portalA, Connected: a, Optimized: a}, {Portal: portalB, Connected: b, NonOptimized: b, LastError: "why"}}}
		if len(portals) > 0 {
			w.Portals = w.Portals[:1]
		}
		return []v1alpha1.HostPaths{w}
	}
	both := func(a, b int32) []v1alpha1.HostSessions {
		return []v1alpha1.HostSessions{{Target: target, Pair: "main-p0", Nodes: []v1alpha1.HostSession{{Node: "a", Portal: portalA, Sessions: a}, {Node: "b", Portal: portalB, Sessions: b}}}}
	}
	mute := []v1alpha1.HostSessions{{Target: target, Pair: "main-p0", Nodes: []v1alpha1.HostSession{{Node: "a", Portal: portalA, Sessions: 1}, {Node: "b", Error: "away"}}}}
	for _, c := range []struct {
		name   string
		worker []v1alpha1.HostPaths
		seen   []v1alpha1.HostSessions
		reason string
		says   []string
	}{
		{"nothing attached", nil, nil, "Ready", []string{"no LUN"}},
		{"whole", worker(3, 3), both(1, 1), "Ready", nil},
		{"a node does not answer, the worker has all paths", worker(3, 3), mute, "Ready", nil},
		{"neither side", worker(3, 0), both(1, 0), "HostRedundancyLost", []string{"node b of main-p0 (" + portalB + ")", "0 of 3", "why"}},
		{"only the target", worker(3, 2), both(1, 1), "PathsNotDiscovered", []string{"node b", "has a session", "2 of 3", "why"}},
		{"only the worker", worker(3, 3), both(1, 0), "HostRedundancyLost", []string{"node b", "no session of the worker"}},
		{"the node is down", worker(3, 0), mute, "HostRedundancyLost", []string{portalB, "node b of main-p0 does not answer", "away"}},
		{"no such pair", worker(3, 0), []v1alpha1.HostSessions{{Target: target}}, "HostRedundancyLost", []string{portalB, "why"}},
		{"a portal that the worker does not use", worker(3, 0, portalA), both(1, 0), "PathsNotDiscovered", []string{"node b", "does not use"}},
		{"both kinds", worker(1, 0), both(1, 0), "HostRedundancyLost", []string{"node a", "node b"}},
	} {
		h := &v1alpha1.Host{Status: v1alpha1.HostStatus{Worker: c.worker}}
		got := pathsCondition(h, c.seen, nil)
		if got.Reason != c.reason || (got.Status == "True") != (c.reason == "Ready") || slices.ContainsFunc(c.says, func(s string) bool { return !strings.Contains(got.Message, s) }) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	many := make([]v1alpha1.HostPaths, 64)
	for i := range many {
		many[i] = worker(0, 0)[0]
	}
	if got := pathsCondition(&v1alpha1.Host{Status: v1alpha1.HostStatus{Worker: many}}, nil, nil); len(got.Message) > 4096 || !strings.Contains(got.Message, "more") {
		t.Error(len(got.Message), got.Message)
	}
}
