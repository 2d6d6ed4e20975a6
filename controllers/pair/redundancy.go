package pair

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/claims"
)

// aloneAfter is how long one node serves without the other one before claims are told: the restart
// of a node takes less, and an upgrade restarts every node.
const aloneAfter = time.Minute

// redundancy updates status.redundancyLost from the conditions, and reports whether it has changed.
// While no node serves it stays: that is another trouble, and nothing is back. It is in the status,
// which is written with a check of the resource version, before an event is recorded: an operator
// that starts tells nothing twice.
func (r *Reconciler) redundancy(s *v1alpha1.TargetPairStatus) (changed bool) {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionInSync)
	lost := s.RedundancyLost
	switch {
	case c.Status == metav1.ConditionTrue:
		lost = false
	case meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) && r.now().Sub(c.LastTransitionTime.Time) >= aloneAfter:
		lost = true
	}
	changed = lost != s.RedundancyLost
	s.RedundancyLost = lost
	return changed
}

// recordRedundancy records that redundancy was lost or is back: on the pair, and on claims in use.
func (r *Reconciler) recordRedundancy(ctx context.Context, p *v1alpha1.TargetPair) {
	luns := claims.InUse(slices.Collect(maps.Values(r.units(ctx, p))))
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionInSync)
	e := claims.Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonRedundancyBack, Action: "Replicate", Related: p,
		Note: "pair " + p.Name + ": both nodes hold all data of the volume again"}
	if p.Status.RedundancyLost {
		e.Type, e.Reason = corev1.EventTypeWarning, v1alpha1.ReasonRedundancyLost
		e.Note = fmt.Sprintf("pair %s serves the volume from one node only; I/O continues, and would end if that node were lost too: %s", p.Name, c.Message)
	}
	told := claims.Record(ctx, r.Live, r.Events, luns, e)
	note := fmt.Sprintf("both nodes hold all data again; LUNs in use: %d, of which %d claims have this event", len(luns), told)
	if p.Status.RedundancyLost {
		note = fmt.Sprintf("one node has served without the other one for %v or longer; LUNs in use: %d, of which %d claims have this event: %s", aloneAfter, len(luns), told, c.Message)
	}
	r.recordEvent(p, e.Type, e.Reason, e.Action, claims.Note(note))
}
