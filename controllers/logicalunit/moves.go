package logicalunit

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// sameMove: a derived move and one that the pair names are one move if they are not further apart:
// the LUN is read once a minute, and clocks differ. A LUN rests for half a minute after a move, and
// a move back has other nodes.
const sameMove = 3 * time.Minute

// moves are the last moves of the LUN: those of the status, those that the pair's status names, and
// one that is derived if the owner has changed without either. The pair names its last eight moves
// only; a failover and a person's transfer are not among them.
func moves(s *v1alpha1.LogicalUnitStatus, pair *v1alpha1.TargetPairStatus, lun *targetv1.LUN, now time.Time) []v1alpha1.LogicalUnitMove {
	out := slices.Clone(s.Moves)
	if o := pair.Ownership; o != nil {
		for _, m := range o.Moves {
			if m.UUID == lun.Uuid && !m.Observed {
				out = merge(out, v1alpha1.LogicalUnitMove{From: m.From, To: m.To, Reason: m.Reason, Message: m.Message, Time: m.Time})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b v1alpha1.LogicalUnitMove) int { return a.Time.Compare(b.Time.Time) })
	last := &v1alpha1.LogicalUnitMove{}
	if len(out) > 0 {
		last = &out[len(out)-1]
	}
	recent := now.Sub(last.Time.Time) < sameMove
	switch {
	case s.Owner != "" && lun.Owner != "" && s.Owner != lun.Owner && (last.To != lun.Owner || !recent):
		out = append(out, derive(s.Owner, pair, lun, now))
	case last.Derived && last.Reason == v1alpha1.MoveUnknown && last.To == lun.Owner && recent:
		// The pair's status may not have had the cause yet.
		next := derive(last.From, pair, lun, now)
		next.Time = last.Time
		*last = next
	}
	return out[max(0, len(out)-v1alpha1.MovesShown):]
}

// merge adds a move that the pair names, in place of the derived one.
func merge(list []v1alpha1.LogicalUnitMove, m v1alpha1.LogicalUnitMove) []v1alpha1.LogicalUnitMove {
	for i := range list {
		x := &list[i]
		if x.From != m.From || x.To != m.To {
			continue
		}
		if !x.Derived && x.Time.Equal(&m.Time) {
			return list
		}
		if x.Derived && x.Time.Sub(m.Time.Time).Abs() < sameMove {
			*x = m
			return list
		}
	}
	return append(list, m)
}

// derive is the move from a former owner, with the reason that the state of the pair shows.
func derive(from string, pair *v1alpha1.TargetPairStatus, lun *targetv1.LUN, now time.Time) v1alpha1.LogicalUnitMove {
	m := v1alpha1.LogicalUnitMove{From: from, To: lun.Owner, Reason: v1alpha1.MoveUnknown, Derived: true, Time: metav1.NewTime(now.Truncate(time.Second))}
	o := pair.Ownership
	switch {
	case len(pair.Members) > 0 && !slices.Contains(pair.Members, from):
		m.Reason, m.Message = v1alpha1.MoveOwnerGone, fmt.Sprintf("node %s was not a member of the pair any more", from)
	case o != nil && o.DrainedNode == from:
		m.Reason, m.Message = v1alpha1.MoveDrain, fmt.Sprintf("node %s is drained: %s", from, o.DrainReason)
	case pinOf(lun) == lun.Owner:
		m.Reason, m.Message = v1alpha1.MovePin, "the LUN is pinned to node "+lun.Owner
	case lun.HeldUntil != nil:
		m.Reason, m.Message = v1alpha1.MoveTransfer, "a person's transfer holds the LUN at node "+lun.Owner
	}
	return m
}
