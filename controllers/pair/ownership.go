package pair

import (
	"cmp"
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// movesShown is how many moves the status has, and the most that the CRD allows.
const movesShown = 8

// ownership is the status of who owns what: of the node that decides, with the last moves of both,
// since the other one may have decided before. If no node answers, or both are of a release that
// decides nothing, the former status stays.
func (r *Reconciler) ownership(ctx context.Context, p *v1alpha1.TargetPair, v *view) *v1alpha1.OwnershipStatus {
	s, known := &v1alpha1.OwnershipStatus{}, false
	var moves []*targetv1.OwnershipMove
	for i := range v.nodes {
		o := v.nodes[i].status.GetOwnership()
		if o == nil {
			continue
		}
		known = true
		if o.Decides {
			s.Away, s.WaitsFor = int32(o.Away), o.WaitsFor
		}
		s.DrainedNode, s.DrainReason = cmp.Or(s.DrainedNode, o.DrainedNode), cmp.Or(s.DrainReason, o.DrainReason)
		if o.Mode != "" && (o.Decides || s.Mode == "") {
			s.Mode, s.FailBackDelay, s.PolicyVersion = modeOf(o.Mode), &metav1.Duration{Duration: o.FailBackDelay.AsDuration()}, int64(o.PolicyVersion)
		}
		if o.Held > 0 {
			s.Held, s.HeldUntil = int32(o.Held), new(metav1.Unix(o.HeldUntil.GetSeconds(), 0))
		}
		moves = append(moves, o.Moves...)
	}
	if !known {
		return p.Status.Ownership
	}
	slices.SortStableFunc(moves, func(x, y *targetv1.OwnershipMove) int { return x.Time.AsTime().Compare(y.Time.AsTime()) })
	if len(moves) == 0 {
		if old := p.Status.Ownership; old != nil { // both processes are new
			s.Moves = old.Moves
		}
		return s
	}
	moves = moves[max(0, len(moves)-movesShown):]
	units := r.units(ctx, p)
	for _, m := range moves {
		x := v1alpha1.OwnershipMove{UUID: m.Lun, From: m.FromNode, To: m.ToNode, Reason: m.Reason, Message: m.Text, Observed: m.Observed, Time: metav1.Unix(m.Time.GetSeconds(), 0)}
		if lu := units[m.Lun]; lu != nil {
			x.LogicalUnit = lu.Name
		}
		s.Moves = append(s.Moves, x)
	}
	return s
}
