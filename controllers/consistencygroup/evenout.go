package consistencygroup

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/claims"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/placement"
)

const (
	callLimit = 5 * time.Second // of the calls for one change
	// remembered is for how long a change counts that the status of the LUN does not have yet: the
	// LogicalUnit is read from its pair about once a minute.
	remembered = 3 * time.Minute
)

// setting is a home that was set a moment ago.
type setting struct {
	home string
	at   time.Time
}

// recall sets the home that a LUN was given a moment ago. After a restart of the operator it is not
// known: then the pair says so before the home is set again.
func (r *Reconciler) recall(m *placement.Member, lu *v1alpha1.LogicalUnit) {
	x, ok := r.changed.Load(lu.UID)
	if !ok || m.Fixed != "" {
		return
	}
	if c := x.(setting); lu.Status.PreferredNode == c.home || r.now().Sub(c.at) > remembered {
		r.changed.CompareAndDelete(lu.UID, x)
	} else {
		m.Home = c.home
	}
}

// evenOut changes the home of one member if its pair is not balanced within one LUN. note is what
// is left, to be appended to the message of the condition; wait: it is to be tried again soon.
func (r *Reconciler) evenOut(ctx context.Context, g *v1alpha1.ConsistencyGroup, v *view) (note string, wait bool) {
	moves := placement.EvenOut(v.members)
	var notes []string
	tried := map[string]bool{} // by pair
	for _, m := range moves {
		if tried[m.Pair] {
			continue
		}
		tried[m.Pair] = true
		why := r.waitsFor(ctx, m, v)
		if why == "" {
			if why = r.setHome(ctx, g, m, v.luns[m.Name]); why == "" {
				v.set(m.Name, m.To)
				return "; the home of claim " + m.Name + " changes", true
			}
		}
		notes = append(notes, fmt.Sprintf("pair %s is to be evened out, but %s", m.Pair, why))
	}
	for _, c := range placement.Counts(v.members) {
		if !c.Even() && !tried[c.Pair] {
			notes = append(notes, fmt.Sprintf("pair %s cannot be evened out (%s): its other members are pinned, have a preferredNode, or are held by a transfer", c.Pair, c))
		}
	}
	const shown = 3
	if n := len(notes) - shown; n > 0 {
		notes = append(notes[:shown], fmt.Sprintf("and %d more pairs", n))
	}
	for _, n := range notes {
		note += "; " + n
	}
	return note, len(tried) > 0
}

// set records the new home of a member in the view.
func (v *view) set(claim, home string) {
	for i := range v.members {
		if v.members[i].Name == claim {
			v.members[i].Home = home
		}
	}
}

// waitsFor is why the home of a member is not changed now; empty if nothing speaks against it. A
// move needs a pair that is in sync and calm, and waits until the move before it is over.
func (r *Reconciler) waitsFor(ctx context.Context, m placement.Move, v *view) string {
	p := &v1alpha1.TargetPair{}
	if err := r.Get(ctx, client.ObjectKey{Name: m.Pair}, p); err != nil {
		return fmt.Sprintf("it cannot be read: %v", err)
	}
	switch o := p.Status.Ownership; {
	case !p.DeletionTimestamp.IsZero():
		return "it is being deleted"
	case !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionInSync):
		return "its nodes are not in sync"
	case o == nil || o.Mode == "":
		return "its nodes are of a release that does not move LUNs to their home"
	case o.Mode != v1alpha1.BalancingAuto:
		return "spec.balancing.mode of its StorageCluster is " + o.Mode
	case o.DrainedNode != "":
		return "node " + o.DrainedNode + " is drained"
	}
	for _, x := range v.members {
		if x.Pair != m.Pair {
			continue
		}
		if x.Owner != x.Home && m.Owner != m.To { // where the other node owns m already, no LUN moves
			return "the LUN of claim " + x.Name + " is not at home"
		}
	}
	return ""
}

// setHome sets the home of a LUN at its pair, which moves the LUN there when the hosts can use that
// node. It is the request that a changed preferredNode makes; spec.preferredNode stays empty,
// because it is a person's. The error is a text for the condition; empty: it is done.
//
// A crash after the request is harmless: the pair has the home in its log, and after the restart
// the LUN is asked for before its home is set again.
func (r *Reconciler) setHome(ctx context.Context, g *v1alpha1.ConsistencyGroup, m placement.Move, lu *v1alpha1.LogicalUnit) string {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := object.Confirm(ctx, r.Live, lu); err != nil { // a person may have set a pin or a preferred node
		return "the LogicalUnit of claim " + m.Name + " cannot be confirmed: " + err.Error()
	}
	pair, err := r.Pairs.Client(ctx, m.Pair)
	if err != nil {
		return err.Error()
	}
	uuid := lu.Spec.Placement.UUID
	now, err := pair.GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: uuid})
	switch {
	case err != nil:
		return r.failed(ctx, "get the LUN", err)
	case now.PinnedNode != "" && now.PinnedNode != v1alpha1.NoPin:
		return "the LUN of claim " + m.Name + " is pinned"
	case now.HeldUntil != nil && now.HeldUntil.AsTime().After(r.now()):
		return "a transfer by a person holds the LUN of claim " + m.Name
	case now.PreferredNode == m.To:
		r.remember(lu, m.To)
		return "" // before a restart
	case now.PreferredNode != m.Home:
		return "the home of claim " + m.Name + " has just changed"
	}
	if s, err := pair.Serving(ctx); err != nil {
		return r.failed(ctx, "get the status", err)
	} else if s.Phase != targetv1.Phase_PHASE_IN_SYNC {
		return "its nodes are not in sync"
	}
	if _, err := pair.ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: uuid, PreferredNode: m.To}); err != nil {
		return r.failed(ctx, "set the home of the LUN", err)
	}
	r.remember(lu, m.To)
	r.Events.Eventf(g, lu, corev1.EventTypeNormal, v1alpha1.ReasonSpread, "SetHome", "%s", claims.Note(fmt.Sprintf("the home of claim %s (LogicalUnit %s) changes from node %s to node %s of pair %s: %s",
		m.Name, lu.Name, m.Home, m.To, m.Pair, m.Reason)))
	return ""
}

func (r *Reconciler) remember(lu *v1alpha1.LogicalUnit, home string) {
	r.changed.Store(lu.UID, setting{home, r.now()})
}

// failed logs an error of a pair. The condition has the step only: texts of errors differ each
// time, and the status would be written again and again.
func (r *Reconciler) failed(ctx context.Context, step string, err error) string {
	ctrl.LoggerFrom(ctx).Error(err, "cannot even out a pair", "step", step)
	return "it did not answer: " + step
}
