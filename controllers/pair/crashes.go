package pair

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// crashes is what a node says of the crashes of its process. Its supervisor starts it again within
// the same container, so Kubernetes does not count them.
func crashes(s *targetv1.Status) *v1alpha1.NodeCrashes {
	x := s.GetSupervisor()
	if x.GetCrashes() == 0 {
		return nil
	}
	return &v1alpha1.NodeCrashes{Count: int64(x.Crashes), Last: x.LastCrash, Time: metav1.NewTime(x.LastCrashTime.AsTime())}
}

// recordCrashes records crashes that the former status of the pair did not show yet.
func (r *Reconciler) recordCrashes(p *v1alpha1.TargetPair, before *v1alpha1.TargetPairStatus) {
	for i := range p.Status.Nodes {
		n := &p.Status.Nodes[i]
		if n.Crashes == nil {
			continue
		}
		if was := crashesBefore(before, n.Name); was != nil && n.Crashes.Count == was.Count && n.Crashes.Time.Equal(&was.Time) {
			continue
		}
		r.recordEvent(p, corev1.EventTypeWarning, v1alpha1.ReasonCrashed, "Restart", crashText(n))
	}
}

// crashesBefore are those of a node that a former status shows.
func crashesBefore(before *v1alpha1.TargetPairStatus, node string) *v1alpha1.NodeCrashes {
	for i := range before.Nodes {
		if before.Nodes[i].Name == node {
			return before.Nodes[i].Crashes
		}
	}
	return nil
}

func crashText(n *v1alpha1.NodeStatus) string {
	return fmt.Sprintf("the process of node %s crashed (%s) and was started again; crashes since its container started: %d; the log of pod %s before %s names the cause",
		n.Name, n.Crashes.Last, n.Crashes.Count, n.Pod, n.Crashes.Time.UTC().Format(time.RFC3339))
}
