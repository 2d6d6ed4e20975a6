package host

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// maxFindings limits the findings in the condition.
const maxFindings = 8

// pathsCondition compares both sides. A path that the worker lacks is lost if the node has no
// session of the worker, and not discovered if it has one. silent are the portals where the worker
// does not request the target port groups.
func pathsCondition(h *v1alpha1.Host, seen []v1alpha1.HostSessions, silent map[string]bool) metav1.Condition {
	var lost, unseen, unasked []string
	for _, w := range h.Status.Worker {
		t := v1alpha1.HostSessions{Target: w.Target}
		if i := slices.IndexFunc(seen, func(s v1alpha1.HostSessions) bool { return s.Target == w.Target }); i >= 0 {
			t = seen[i]
		}
		l, u := compare(w, t)
		lost, unseen, unasked = append(lost, l...), append(unseen, u...), append(unasked, silentPaths(w, t, silent)...)
	}
	c := metav1.Condition{Type: v1alpha1.ConditionPathsComplete, Status: metav1.ConditionFalse, ObservedGeneration: h.Generation}
	switch {
	case len(lost) > 0:
		c.Reason = v1alpha1.ReasonPathLost
	case len(unseen) > 0:
		c.Reason = v1alpha1.ReasonPathUnseen
	case len(unasked) > 0:
		c.Reason = v1alpha1.ReasonPathUnasked
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonReady, "worker and targets see every path"
		if len(h.Status.Worker) == 0 {
			c.Message = "no LUN is attached"
		}
		return c
	}
	all := slices.Concat(lost, unseen, unasked)
	c.Message = strings.Join(all[:min(len(all), maxFindings)], "; ")
	if n := len(all) - maxFindings; n > 0 {
		c.Message += fmt.Sprintf("; and %d more", n)
	}
	return c
}

// compare compares the paths to one pair.
func compare(w v1alpha1.HostPaths, t v1alpha1.HostSessions) (lost, unseen []string) {
	for _, p := range w.Portals {
		name := "portal " + p.Portal
		i := slices.IndexFunc(t.Nodes, func(n v1alpha1.HostSession) bool { return n.Portal == p.Portal })
		sessions := int32(-1) // unknown
		if i >= 0 {
			sessions = t.Nodes[i].Sessions
			name = fmt.Sprintf("node %s of %s (%s)", t.Nodes[i].Node, t.Pair, p.Portal)
		}
		short := fmt.Sprintf("the worker has %d of %d paths", p.Connected, w.LUNs)
		if p.LastError != "" {
			short += ": " + p.LastError
		}
		switch {
		case p.Connected >= w.LUNs && sessions == 0:
			lost = append(lost, fmt.Sprintf("%s has no session of the worker, but the worker reports all its paths there as connected", name))
		case p.Connected >= w.LUNs:
		case sessions > 0:
			unseen = append(unseen, fmt.Sprintf("%s has a session of the worker, but %s", name, short))
		case sessions == 0:
			lost = append(lost, fmt.Sprintf("%s has no session of the worker: %s", name, short))
		default:
			lost = append(lost, fmt.Sprintf("%s: %s%s", name, short, unreachableNodes(t)))
		}
	}
	for _, n := range t.Nodes {
		if n.Portal != "" && !slices.ContainsFunc(w.Portals, func(p v1alpha1.HostPortal) bool { return p.Portal == n.Portal }) {
			unseen = append(unseen, fmt.Sprintf("the worker does not use the portal of node %s of %s (%s): delete the pods that use its volumes on this worker, so that the volumes are published again", n.Node, t.Pair, n.Portal))
		}
	}
	return lost, unseen
}

// silentPaths returns the paths that the worker uses without requesting the target port groups.
// Unavailable paths do not count: multipathd sends no requests there.
func silentPaths(w v1alpha1.HostPaths, t v1alpha1.HostSessions, silent map[string]bool) (out []string) {
	for _, n := range t.Nodes {
		if !silent[n.Portal] || !slices.ContainsFunc(w.Portals, func(p v1alpha1.HostPortal) bool { return p.Portal == n.Portal && p.Optimized+p.NonOptimized > 0 }) {
			continue
		}
		last := "ever"
		if n.LastRTPG != nil {
			last = "since about " + n.LastRTPG.UTC().Format(time.RFC3339)
		}
		out = append(out, fmt.Sprintf("the worker uses node %s of %s (%s), but has not requested the target port groups from it %s: check that multipathd uses ALUA, because the worker does not see which node owns a LUN",
			n.Node, t.Pair, n.Portal, last))
	}
	return out
}

// unreachableNodes names the nodes that do not answer.
func unreachableNodes(t v1alpha1.HostSessions) (out string) {
	for _, n := range t.Nodes {
		if n.Error != "" {
			out += fmt.Sprintf(" (node %s of %s does not answer: %s)", n.Node, t.Pair, n.Error)
		}
	}
	return out
}
