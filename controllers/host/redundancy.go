package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/claims"
)

const (
	// settle is how long paths have to be incomplete before redundancy counts as lost: a volume
	// that is being attached gets its paths one after the other, and the worker reports every five
	// seconds.
	settle = 15 * time.Second
	// settleBack is the same for paths to a node that was away: workers log in again one after the
	// other.
	settleBack = time.Minute
)

// change of the redundancy of the paths to one pair, which is an event.
type change struct {
	pair, target string
	to           string // v1alpha1.RedundancyComplete, …
	why          string
}

// redundancy sets the redundancy of the paths to each pair from the one of the status, and returns
// the changes, and when to look again (0: nothing is pending). Both are in the status, so that an
// operator that starts continues where the former one ended.
func redundancy(h *v1alpha1.Host, seen []v1alpha1.HostSessions, pairs []v1alpha1.TargetPair, now time.Time) (list []change, again time.Duration) {
	for i := range seen {
		t := &seen[i]
		old := v1alpha1.HostSessions{}
		if j := slices.IndexFunc(h.Status.Targets, func(s v1alpha1.HostSessions) bool { return s.Target == t.Target }); j >= 0 {
			old = h.Status.Targets[j]
		}
		w := slices.IndexFunc(h.Status.Worker, func(w v1alpha1.HostPaths) bool { return w.Target == t.Target })
		if w < 0 {
			continue // seen is made from this list
		}
		state, why := judge(h.Status.Worker[w], *t, pairs)
		if state == v1alpha1.RedundancyComplete {
			t.Redundancy = state
			// A pair without a former state is new to the worker.
			if old.Redundancy == v1alpha1.RedundancyLost || old.Redundancy == v1alpha1.RedundancyNodeAway {
				list = append(list, change{t.Pair, t.Target, state, ""})
			}
			continue
		}
		t.Redundancy = old.Redundancy
		if t.Redundancy == state || t.Redundancy == v1alpha1.RedundancyLost {
			continue // what is lost stays lost until it is complete: its claims are told of the end
		}
		if t.PendingSince = old.PendingSince.DeepCopy(); t.PendingSince == nil {
			t.PendingSince = &metav1.Time{Time: now.Truncate(time.Second)} // as the status stores it
		}
		wait := settle
		if t.Redundancy == v1alpha1.RedundancyNodeAway {
			wait = settleBack
		}
		if left := t.PendingSince.Add(wait).Sub(now); left > 0 {
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		t.PendingSince = nil
		t.Redundancy = state
		list = append(list, change{t.Pair, t.Target, state, why})
	}
	return list, again
}

// judge says whether the paths to one pair are complete, and if not, whether all missing ones lead
// to a node that does not serve, as far as the operator knows: then the trouble is that of the
// pair.
func judge(w v1alpha1.HostPaths, t v1alpha1.HostSessions, pairs []v1alpha1.TargetPair) (state, why string) {
	lost, unseen := compare(w, t)
	if len(lost)+len(unseen) == 0 {
		return v1alpha1.RedundancyComplete, ""
	}
	why = strings.Join(slices.Concat(lost, unseen), "; ")
	i := slices.IndexFunc(pairs, func(p v1alpha1.TargetPair) bool { return p.Name == t.Pair })
	if i < 0 {
		return v1alpha1.RedundancyLost, why
	}
	away := func(s v1alpha1.HostSession) bool {
		return s.Error != "" || slices.ContainsFunc(pairs[i].Status.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Name == s.Node && !n.Serves() })
	}
	for _, p := range w.Portals {
		n := slices.IndexFunc(t.Nodes, func(s v1alpha1.HostSession) bool { return s.Portal == p.Portal })
		switch {
		case n < 0 && p.Connected >= w.LUNs:
		case n < 0: // a node that does not answer does not say its portal
			if !slices.ContainsFunc(t.Nodes, func(s v1alpha1.HostSession) bool { return s.Portal == "" && away(s) }) {
				return v1alpha1.RedundancyLost, why
			}
		case (p.Connected < w.LUNs || t.Nodes[n].Sessions == 0) && !away(t.Nodes[n]):
			return v1alpha1.RedundancyLost, why
		}
	}
	for _, n := range t.Nodes {
		if n.Portal != "" && !away(n) && !slices.ContainsFunc(w.Portals, func(p v1alpha1.HostPortal) bool { return p.Portal == n.Portal }) {
			return v1alpha1.RedundancyLost, why
		}
	}
	return v1alpha1.RedundancyNodeAway, why
}

// record records the changes: each on the Host, and those that are the worker's own trouble on the
// claims of the LUNs that are mapped to it. Of a node that is away the TargetPair tells the claims,
// because it concerns every worker.
func (r *Reconciler) record(ctx context.Context, h *v1alpha1.Host, list []change, lost map[string]bool, luns []*v1alpha1.LogicalUnit) {
	for _, c := range list {
		own := slices.DeleteFunc(slices.Clone(luns), func(lu *v1alpha1.LogicalUnit) bool {
			return !lu.Spec.Placement.On(c.pair)
		})
		e := claims.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonPathLost, Action: "CheckPaths", Related: h}
		var note string
		switch c.to {
		case v1alpha1.RedundancyComplete:
			e.Type, e.Reason = corev1.EventTypeNormal, v1alpha1.ReasonPathsBack
			e.Note = fmt.Sprintf("worker %s has all its paths to pair %s again", h.Name, c.pair)
			note = fmt.Sprintf("all paths to pair %s are there again", c.pair)
		case v1alpha1.RedundancyLost:
			e.Note = fmt.Sprintf("worker %s lacks paths to pair %s: %s", h.Name, c.pair, c.why)
			note = fmt.Sprintf("paths to pair %s are missing", c.pair)
		default:
			note = fmt.Sprintf("paths to pair %s are missing, because a node of it does not serve or does not answer; the pair tells the claims", c.pair)
		}
		note = fmt.Sprintf("%s; LUNs: %d", note, len(own))
		if e.Note != "" && (c.to == v1alpha1.RedundancyLost || lost[c.target]) {
			note += fmt.Sprintf(", of which %d claims have this event", claims.Record(ctx, r.Live, r.Events, own, e))
		}
		if c.why != "" {
			note += ": " + c.why
		}
		r.Events.Eventf(h, nil, e.Type, e.Reason, e.Action, "%s", claims.Note(note))
	}
}

// wereLost are the pairs, by iSCSI name, whose claims were told of a loss.
func wereLost(h *v1alpha1.Host) map[string]bool {
	out := map[string]bool{}
	for _, t := range h.Status.Targets {
		out[t.Target] = t.Redundancy == v1alpha1.RedundancyLost
	}
	return out
}
