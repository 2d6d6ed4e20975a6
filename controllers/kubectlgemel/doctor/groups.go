package doctor

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// groupNotReady: a group snapshot was not taken, or is not whole any more.
func groupNotReady(x *exam) {
	for i := range x.Groups {
		g := &x.Groups[i]
		c, long := x.failing(g.Status.Conditions, v1alpha1.ConditionReady)
		if !long || !g.DeletionTimestamp.IsZero() || x.memberSays(g, c) {
			continue
		}
		f := Finding{Severity: Warning, Problem: "the LogicalUnitGroupSnapshot is not Ready", Cause: c.Reason + ": " + general(c.Message, g.Name, "NAME"), Evidence: []string{x.quote(c)},
			Procedure: procedureFor(c.Reason, "kubectl describe lungroupsnap {name}")}
		if c.Reason == v1alpha1.ReasonMissing {
			f.Severity, f.Problem = Critical, "the data of the LogicalUnitGroupSnapshot is missing in part"
		}
		x.add(kindGroup, g.Name, f)
	}
}

// memberSays reports whether the trouble is that of a member, or of a pair with a member, which has
// its own finding.
func (x *exam) memberSays(g *v1alpha1.LogicalUnitGroupSnapshot, c metav1.Condition) bool {
	return slices.ContainsFunc(x.Snapshots, func(s v1alpha1.LogicalUnitSnapshot) bool {
		if s.Spec.Group != g.Name {
			return false
		}
		own := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
		return own != nil && own.Status != metav1.ConditionTrue && own.Reason == c.Reason && c.Reason != v1alpha1.ReasonProgressing ||
			s.Spec.Placement != nil && x.unready(s.Spec.Placement.Pair, c.Reason)
	})
}

// waitsForGroup reports whether a snapshot waits for its group, which has its own finding.
func (x *exam) waitsForGroup(s *v1alpha1.LogicalUnitSnapshot, reason string) bool {
	return reason == v1alpha1.ReasonProgressing && slices.ContainsFunc(x.Groups, func(g v1alpha1.LogicalUnitGroupSnapshot) bool { return g.Name == s.Spec.Group })
}
