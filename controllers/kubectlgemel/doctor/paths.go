package doctor

import (
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// hostWithoutPath: a worker has no path to LUNs that are attached to it.
func hostWithoutPath(x *exam) {
	for i := range x.Hosts {
		h := &x.Hosts[i]
		c, long := x.failing(h.Status.Conditions, v1alpha1.ConditionPathsComplete)
		if !long {
			continue
		}
		for j := range h.Status.Worker {
			w := &h.Status.Worker[j]
			p := x.pairOf(w.Target)
			if !pathless(w) || p != nil && isFalse(p.Status.Conditions, v1alpha1.ConditionReady) {
				continue
			}
			evidence := []string{x.quote(c)}
			for _, q := range w.Portals {
				if q.LastError != "" {
					evidence = append(evidence, "portal "+q.Portal+": "+q.LastError)
				}
			}
			name := w.Target
			if p != nil {
				name = p.Name
			}
			x.add(kindHost, h.Name, Finding{Severity: Critical, Problem: "the worker has no path to its LUNs of a pair: their I/O waits, then fails", Cause: "the worker reaches no portal of " + name + ", although the pair serves", Evidence: evidence,
				Procedure: []string{"on the worker: iscsiadm -m session -P 1, multipath -ll, and for each portal nc -z ADDRESS 3260", "see docs/workers.md#what-to-do"}})
		}
	}
}

// pathless reports whether no LUN of a pair has a usable path.
func pathless(w *v1alpha1.HostPaths) bool {
	return w.LUNs > 0 && !slices.ContainsFunc(w.Portals, func(p v1alpha1.HostPortal) bool { return p.Connected > 0 })
}

// pathsIncomplete: a path is missing, so the next failure stops I/O of this worker.
func pathsIncomplete(x *exam) {
	for i := range x.Hosts {
		h := &x.Hosts[i]
		c, long := x.failing(h.Status.Conditions, v1alpha1.ConditionPathsComplete)
		if !long || c.Reason == v1alpha1.ReasonPathUnasked || slices.ContainsFunc(h.Status.Worker, func(w v1alpha1.HostPaths) bool { return pathless(&w) }) || x.excused(h) {
			continue
		}
		cause := "the worker has no session on one node of a pair: its paths are not redundant"
		if c.Reason == v1alpha1.ReasonPathUnseen {
			cause = "the worker has a session on each node, and paths are missing: its paths are not redundant"
		}
		x.add(kindHost, h.Name, Finding{Severity: Warning, Problem: "the paths of the worker are not complete", Cause: cause, Evidence: []string{x.quote(c)},
			Procedure: []string{"check the network between the worker and the node that the evidence names; on the worker: iscsiadm -m session -P 1, multipath -ll", "see docs/workers.md#what-to-do"}})
	}
}

// excused reports whether all missing paths lead to nodes that do not serve: the pair has a finding
// of its own, and the paths come back with the node.
func (x *exam) excused(h *v1alpha1.Host) bool {
	missing := false
	for i := range h.Status.Worker {
		w := &h.Status.Worker[i]
		p := x.pairOf(w.Target)
		for _, q := range w.Portals {
			if q.Connected >= w.LUNs && !x.sessionless(h, w.Target, q.Portal) {
				continue
			}
			n := x.nodeAt(h, p, q.Portal)
			if n == nil || n.Serves() {
				return false
			}
			missing = true
		}
	}
	return missing
}

// sessionless reports whether the node of a portal says that the worker has no session there.
func (x *exam) sessionless(h *v1alpha1.Host, target, portal string) bool {
	for _, t := range h.Status.Targets {
		for _, n := range t.Nodes {
			if t.Target == target && n.Portal == portal {
				return n.Sessions == 0
			}
		}
	}
	return false
}

// nodeAt is the node of a portal; nil if it is unknown. A node that does not answer does not say
// its portal, which is the address in the spec then.
func (x *exam) nodeAt(h *v1alpha1.Host, p *v1alpha1.TargetPair, portal string) *v1alpha1.NodeStatus {
	if p == nil {
		return nil
	}
	for _, t := range h.Status.Targets {
		for _, n := range t.Nodes {
			if t.Pair == p.Name && n.Portal == portal {
				return nodeOf(p, n.Node)
			}
		}
	}
	for _, n := range p.Spec.Nodes {
		if n.Address != "" && (strings.HasPrefix(portal, n.Address+":") || strings.HasPrefix(portal, "["+n.Address+"]:")) {
			return nodeOf(p, n.Name)
		}
	}
	return nil
}

// pairOf is the pair with an iSCSI name; nil if there is none.
func (x *exam) pairOf(target string) *v1alpha1.TargetPair {
	for i := range x.Pairs {
		if x.Pairs[i].Status.TargetIQN == target {
			return &x.Pairs[i]
		}
	}
	return nil
}

// pathsNotAsked: the worker does not see which node owns a LUN.
func pathsNotAsked(x *exam) {
	for i := range x.Hosts {
		h := &x.Hosts[i]
		c, long := x.failing(h.Status.Conditions, v1alpha1.ConditionPathsComplete)
		if !long || c.Reason != v1alpha1.ReasonPathUnasked {
			continue
		}
		x.add(kindHost, h.Name, Finding{Severity: Warning, Problem: "the worker uses paths and does not ask for the target port groups (REPORT TARGET PORT GROUPS) on them", Cause: "multipathd does not run, does not check the paths, or multipath.conf does not use ALUA for them", Evidence: []string{x.quote(c)},
			Procedure: []string{`on the worker: systemctl status multipathd; multipathd show config must have prio "alua" and detect_prio "no" for GEMEL; then multipathd reconfigure`,
				"see docs/workers.md#what-gemel-configures-and-why and docs/workers.md#what-to-do"}})
	}
}
