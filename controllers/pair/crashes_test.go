package pair

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A crash is one event, also if the node does not answer for a while afterwards, or the operator is
// another one.
func TestCrashesAreEvents(t *testing.T) {
	rec := events.NewFakeRecorder(10)
	r := &Reconciler{Events: rec}
	p := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "main-p0"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gemel-main-p0-a-0"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "i"}}}}
	at := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	crashed := func(n uint64, last string, at time.Time) *targetv1.Status {
		return &targetv1.Status{Phase: targetv1.Phase_PHASE_IN_SYNC, Supervisor: &targetv1.Supervisor{Crashes: n, LastCrash: last, LastCrashTime: timestamppb.New(at)}}
	}
	for _, x := range []struct {
		name   string
		status *targetv1.Status
		says   string
	}{
		{"nothing has happened", &targetv1.Status{Supervisor: &targetv1.Supervisor{}}, ""},
		{"a node of an older release", &targetv1.Status{}, ""},
		{"it crashed", crashed(1, "killed by signal SIGSEGV after 2s", at), "Warning Crashed the process of node a crashed (killed by signal SIGSEGV after 2s) and was started again; crashes since its container started: 1; the log of pod gemel-main-p0-a-0 before 2026-11-23T09:00:00Z"},
		{"nothing is new", crashed(1, "killed by signal SIGSEGV after 2s", at), ""},
		{"it does not answer", nil, ""},
		{"nor is this", crashed(1, "killed by signal SIGSEGV after 2s", at), ""},
		{"again", crashed(2, "exit code 2 after 1s", at.Add(time.Minute)), "exit code 2"},
		{"another container crashes", crashed(1, "exit code 2 after 3s", at.Add(time.Hour)), "after 3s"},
	} {
		before := p.Status.DeepCopy()
		p.Status.Nodes = []v1alpha1.NodeStatus{nodeStatus(&nodeView{name: "a", pod: pod, status: x.status}, before)}
		r.recordCrashes(p, before)
		said := ""
		select {
		case said = <-rec.Events:
		default:
		}
		if (said == "") != (x.says == "") || !strings.Contains(said, x.says) {
			t.Errorf("%s: %q, want %q", x.name, said, x.says)
		}
	}
}

// A supervisor is in the environment, which releases that have none ignore.
func TestTargetsHaveSupervisors(t *testing.T) {
	p := &v1alpha1.TargetPair{Spec: v1alpha1.TargetPairSpec{Nodes: []v1alpha1.PairNode{{Name: "a", Address: "10.0.0.1"}, {Name: "b", Address: "10.0.0.2"}}}}
	if env := supervisors(p, "b"); env["GEMEL_SUPERVISOR_LISTEN"] != "0.0.0.0:3263" || env["GEMEL_PEER_SUPERVISOR"] != "10.0.0.1:3263" {
		t.Errorf("%v", env)
	}
}
