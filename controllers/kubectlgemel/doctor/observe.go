package doctor

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// How long a state may last before it counts as trouble.
const (
	patience     = 5 * time.Minute  // failovers, restarts and retries take less
	longPatience = 30 * time.Minute // what says of itself that it makes progress
	movePatience = 2 * time.Hour    // data that moves away from members of a pool
)

// failing returns a condition that is not True, and has not been for long enough. Without the
// condition there is no finding: notObserved reports that.
func (x *exam) failing(list []metav1.Condition, kind string) (metav1.Condition, bool) {
	c := meta.FindStatusCondition(list, kind)
	if c == nil || c.Status == metav1.ConditionTrue {
		return metav1.Condition{}, false
	}
	limit := patience
	switch c.Reason {
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonRolling:
		limit = longPatience
	case v1alpha1.ReasonMember:
		limit = movePatience
	}
	return *c, x.age(c.LastTransitionTime) >= limit
}

// isFalse reports whether a condition exists and is not True.
func isFalse(list []metav1.Condition, kind string) bool {
	c := meta.FindStatusCondition(list, kind)
	return c != nil && c.Status != metav1.ConditionTrue
}

func isTrue(list []metav1.Condition, kind string) bool {
	return meta.IsStatusConditionTrue(list, kind)
}

// trueFor reports whether a condition has been True for a time.
func (x *exam) trueFor(list []metav1.Condition, kind string, d time.Duration) bool {
	c := meta.FindStatusCondition(list, kind)
	return c != nil && c.Status == metav1.ConditionTrue && x.age(c.LastTransitionTime) >= d
}

func (x *exam) age(t metav1.Time) time.Duration { return x.now.Sub(t.Time) }

// quote is a condition as evidence.
func (x *exam) quote(c metav1.Condition) string {
	return fmt.Sprintf("%s is %s since %s, %s: %s", c.Type, c.Status, x.since(c.LastTransitionTime), c.Reason, c.Message)
}

// since is a time with its age.
func (x *exam) since(t metav1.Time) string {
	return fmt.Sprintf("%s (%s)", t.UTC().Format(time.RFC3339), duration.HumanDuration(x.age(t)))
}

// specWritten is when something other than the status of an object was written last: the API server
// keeps that for every field manager.
func specWritten(o metav1.Object) metav1.Time {
	return written(o, o.GetCreationTimestamp(), func(sub string) bool { return sub == "" })
}

// statusWritten is when the status of an object was changed last; zero if that is unknown.
func statusWritten(o metav1.Object) metav1.Time {
	return written(o, metav1.Time{}, func(sub string) bool { return sub == "status" })
}

func written(o metav1.Object, t metav1.Time, of func(subresource string) bool) metav1.Time {
	for _, e := range o.GetManagedFields() {
		if of(e.Subresource) && e.Time != nil && e.Time.After(t.Time) {
			t = *e.Time
		}
	}
	return t
}

// nodeOf is the status of a node of a pair; nil if there is none.
func nodeOf(p *v1alpha1.TargetPair, name string) *v1alpha1.NodeStatus {
	i := slices.IndexFunc(p.Status.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Status.Nodes[i]
}

// describe is a node as evidence.
func describe(p *v1alpha1.TargetPair, n *v1alpha1.NodeStatus) string {
	text := "node " + n.Name
	for _, s := range p.Spec.Nodes {
		if s.Name == n.Name && s.Worker != "" {
			text += " on " + s.Worker
		}
	}
	text += " is " + n.Phase
	if n.ResyncPercent != nil {
		text += fmt.Sprintf(", resync %d%%", *n.ResyncPercent)
	}
	if n.Reason != "" {
		text += ": " + n.Reason
	}
	return text
}

// nodes are all nodes of a pair as evidence.
func nodes(p *v1alpha1.TargetPair) (out []string) {
	for i := range p.Status.Nodes {
		out = append(out, describe(p, &p.Status.Nodes[i]))
	}
	return out
}

// Phases of nodes in a status.
const (
	phaseInSync    = "InSync"
	phaseResyncing = "Resyncing"
	phaseFenced    = "Fenced"
	phaseUnknown   = "Unknown"
)
