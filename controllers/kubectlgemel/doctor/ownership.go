package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
)

const (
	// awayAfter: a LUN goes home half a minute after its hosts can use its home, and an idle LUN
	// within an hour.
	awayAfter = time.Hour
	// drainAfter: a person who works on a node ends the drain, or it ends by itself.
	drainAfter = 2 * time.Hour
)

// away are the LUNs of a pair that the other node owns than their preferred node, for long: since
// then no move of them was decided, their specs were not changed, and the pair was in sync. It is
// empty while a drain stands.
func (x *exam) away(p *v1alpha1.TargetPair) (list []*v1alpha1.LogicalUnit) {
	o := p.Status.Ownership
	if o == nil || o.Away == 0 || o.DrainedNode != "" || !x.trueFor(p.Status.Conditions, v1alpha1.ConditionInSync, awayAfter) {
		return nil
	}
	moved := map[string]bool{}
	for _, m := range o.Moves {
		if x.age(m.Time) < awayAfter && !m.Observed {
			moved[m.UUID] = true
		}
	}
	for _, lu := range x.luns[p.Name] {
		s := &lu.Status
		if s.PreferredNode == "" || s.Owner == "" || s.Owner == s.PreferredNode || moved[lu.Spec.Placement.UUID] || x.age(specWritten(lu)) < awayAfter {
			continue
		}
		list = append(list, lu)
	}
	return list
}

// idle reports whether the policy of the nodes forbids all moves but those of pins and drains.
func idle(o *v1alpha1.OwnershipStatus) bool {
	return o.Mode != "" && o.Mode != v1alpha1.BalancingAuto
}

// lunsAway: hosts do not use the home of LUNs.
func lunsAway(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		list := x.away(p)
		if len(list) == 0 || idle(p.Status.Ownership) {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "LUNs are not at home for more than an hour: one node does the work of both", Cause: p.Status.Ownership.WaitsFor, Evidence: x.ownership(p, list),
			Procedure: []string{"check on the host that the cause names: iscsiadm -m session, multipath -ll, and its network to the portals of both nodes", "see docs/ownership.md#what-to-do"}})
	}
}

// balancingOff: the LUNs stay where they are because a person said so.
func balancingOff(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		list := x.away(p)
		if len(list) == 0 || !idle(p.Status.Ownership) {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Note, Problem: "LUNs are not at home, and do not return by themselves", Cause: p.Status.Ownership.WaitsFor, Evidence: x.ownership(p, list),
			Procedure: []string{"set spec.balancing.mode of StorageCluster " + p.Spec.Cluster + " to Auto, or move the LUNs: kubectl gemel transfer", "see docs/ownership.md#what-to-do"}})
	}
}

func (x *exam) ownership(p *v1alpha1.TargetPair, list []*v1alpha1.LogicalUnit) []string {
	var names []string
	for _, lu := range list[:min(len(list), maxOthers)] {
		names = append(names, fmt.Sprintf("%s (node %s, home is %s)", lu.Name, lu.Status.Owner, lu.Status.PreferredNode))
	}
	out := []string{fmt.Sprintf("%d of %d LUNs are away, %d of them for more than an hour: %s", p.Status.Ownership.Away, p.Status.LogicalUnits, len(list), strings.Join(names, ", "))}
	if m := p.Status.Ownership.Moves; len(m) > 0 {
		l := m[len(m)-1]
		out = append(out, fmt.Sprintf("the last move was from node %s to node %s %s, %s: %s", l.From, l.To, x.since(l.Time), l.Reason, l.Message))
	}
	return out
}

// drainStands: no LUN moves to a node. The status does not say when the drain began: it stands at
// least since a LUN left the node because of it, and since the status was changed last.
func drainStands(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		o := p.Status.Ownership
		if o == nil || o.DrainedNode == "" {
			continue
		}
		since := statusWritten(p)
		if t := drainedSince(o); !t.IsZero() && (since.IsZero() || t.Before(&since)) {
			since = t
		}
		if since.IsZero() || x.age(since) < drainAfter {
			continue
		}
		f := Finding{Severity: Note, Problem: "node " + o.DrainedNode + " is drained: node " + pair.Other(o.DrainedNode) + " owns all LUNs", Cause: "a person drained the node: " + o.DrainReason,
			Evidence:  []string{fmt.Sprintf("the drain stands since %s or longer; %d LUNs are away", x.since(since), o.Away)},
			Procedure: []string{"if the work on the node is done: gemel-target drain " + o.DrainedNode + " --end, at either node", "see docs/ownership.md#what-to-do"}}
		if strings.HasPrefix(o.DrainReason, v1alpha1.OperatorManager) {
			f.Severity, f.Cause = Warning, "the operator rolls the pair and cannot complete it: "+o.DrainReason
			f.Procedure = []string{"see the condition UpToDate: kubectl describe targetpair {name}; the drain ends with the roll, or five minutes after the operator has stopped", "see docs/kubernetes.md#upgrade"}
		}
		x.add(kindPair, p.Name, f)
	}
}

// drainedSince is when the first LUN left the drained node after the last LUN went there; zero if
// the moves do not show it.
func drainedSince(o *v1alpha1.OwnershipStatus) (t metav1.Time) {
	for _, m := range slices.Backward(o.Moves) {
		switch {
		case m.Observed:
		case m.To == o.DrainedNode:
			return t
		case m.Reason == "Drain" && m.From == o.DrainedNode:
			t = m.Time
		}
	}
	return t
}
