package pair

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/exits"
)

// podOf is a pod whose process exited with a code and has been restarted, or waits for the restart.
func podOf(code int32, waits bool) *corev1.Pod {
	c := corev1.ContainerStatus{Name: "target", RestartCount: 4, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Message: "time=… level=INFO\nthe store failed (fsync): check the disk, replace it if this comes back\n",
		FinishedAt: metav1.NewTime(time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC))}}}
	if waits {
		c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s restarting failed container"}
	} else {
		c.State.Running = &corev1.ContainerStateRunning{}
	}
	return &corev1.Pod{Spec: corev1.PodSpec{NodeName: "worker", Containers: []corev1.Container{{Name: "target", Image: "gemel:1"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{c}}}
}

// The last message of a process that left the pair is in the conditions while the node waits for
// its restart, starts or joins, until both nodes are in sync.
func TestConditionsHaveTheLastMessageOfANodeThatLeft(t *testing.T) {
	alone := &targetv1.Status{Phase: targetv1.Phase_PHASE_RESYNCING}
	for _, x := range []struct {
		name   string
		pod    *corev1.Pod
		status *targetv1.Status
		want   []string
		not    string
	}{
		{"waits", podOf(exits.Left, true), nil, []string{"CrashLoopBackOff", "check the disk"}, ""},
		{"starts", podOf(exits.Left, false), nil, []string{"does not answer", "the previous process left the pair at 2026-11-23T09:00:00Z (restarted 4 times)", "check the disk"}, ""},
		{"joins", podOf(exits.Left, false), &targetv1.Status{Phase: targetv1.Phase_PHASE_JOINING, Reason: "the other node copies its data to this node"}, []string{"the other node copies its data to this node; the previous process left the pair", "check the disk"}, ""},
		{"joins, no reason", podOf(exits.Left, false), &targetv1.Status{Phase: targetv1.Phase_PHASE_JOINING}, []string{"node b is Joining; the previous process left the pair", "check the disk"}, ""},
		{"another end", podOf(137, false), &targetv1.Status{Phase: targetv1.Phase_PHASE_JOINING}, []string{"node b is Joining"}, "left the pair"},
	} {
		t.Run(x.name, func(t *testing.T) {
			v := &view{nodes: [2]nodeView{{name: "a", status: alone}, {name: "b", pod: x.pod, status: x.status}}}
			c := meta.FindStatusCondition(conditions(v, nil), v1alpha1.ConditionInSync)
			for _, want := range x.want {
				if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, want) {
					t.Errorf("InSync is %s: %q does not say %q", c.Status, c.Message, want)
				}
			}
			if x.not != "" && strings.Contains(c.Message, x.not) {
				t.Errorf("%q", c.Message)
			}
			if said := nodeStatus(&v.nodes[1], &v1alpha1.TargetPairStatus{}).Reason; x.not == "" && !strings.Contains(said, "check the disk") {
				t.Errorf("the node's reason is %q", said)
			}
		})
	}
	v := &view{nodes: [2]nodeView{{name: "a", status: &targetv1.Status{Phase: targetv1.Phase_PHASE_IN_SYNC}},
		{name: "b", pod: podOf(exits.Left, false), status: &targetv1.Status{Phase: targetv1.Phase_PHASE_IN_SYNC}}}}
	if c := meta.FindStatusCondition(conditions(v, nil), v1alpha1.ConditionInSync); c.Status != metav1.ConditionTrue || strings.Contains(c.Message, "left") {
		t.Errorf("%+v", c)
	}
	if said := nodeStatus(&v.nodes[1], &v1alpha1.TargetPairStatus{}).Reason; said != "" {
		t.Errorf("the node's reason is %q", said)
	}
	old := &metav1.Condition{Type: v1alpha1.ConditionInSync, Status: metav1.ConditionFalse, Message: "node b (Joining): the other node copies its data to this node"}
	if now := *old; !needsEvent(old, func() *metav1.Condition { now.Message += leftPair(&v.nodes[1]); return &now }()) {
		t.Error("there is no event")
	}
}
