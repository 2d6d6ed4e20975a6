package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
)

const (
	// downAfter: a failover takes about a second, and the operator writes the status every few
	// seconds.
	downAfter = time.Minute
	// startAfter: claims are bound, images are pulled and pods are started before a new pair
	// serves.
	startAfter = 15 * time.Minute
)

// waitsForPeer is in the reason of a node that has rebooted and lacks what only the page cache had.
const waitsForPeer = "coldStart: Wait"

// down reports whether no node of a pair serves, although one has served before.
func (x *exam) down(p *v1alpha1.TargetPair) bool {
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
	return c != nil && c.Status != "True" && p.Status.Epoch > 0 && x.age(c.LastTransitionTime) >= downAfter
}

// pairDown: no node serves.
func pairDown(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		if !x.down(p) {
			continue
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		cause, procedure := x.whyDown(p)
		x.add(kindPair, p.Name, Finding{Severity: Critical, Problem: "no node of the pair serves, and hosts wait for the data of its LUNs", Cause: cause,
			Evidence:  append([]string{x.quote(*c), fmt.Sprintf("%d LUNs, epoch %d, members on record: %v", p.Status.LogicalUnits, p.Status.Epoch, p.Status.Members)}, nodes(p)...),
			Procedure: procedure})
	}
}

func (x *exam) whyDown(p *v1alpha1.TargetPair) (cause string, procedure []string) {
	var waiting, fenced, silent []string
	for i := range p.Status.Nodes {
		switch n := &p.Status.Nodes[i]; {
		case strings.Contains(n.Reason, waitsForPeer):
			waiting = append(waiting, n.Name)
		case n.Phase == phaseFenced:
			fenced = append(fenced, n.Name)
		case n.Phase == phaseUnknown:
			silent = append(silent, n.Name)
		}
	}
	node := "NODE"
	if len(waiting) == 1 {
		node = waiting[0]
	}
	promote := []string{"only if the other node is lost for good: kubectl gemel pair promote {name} " + node + " says what it finds and what it would cost, and changes nothing; with --accept-loss it makes node " + node + " the only member",
		"danger of --accept-loss: writes that only the other node has are lost, and every LUN answers MEDIUM ERROR until its volume is detached and attached again",
		"see docs/kubernetes.md#a-pair-that-no-longer-serves"}
	switch {
	case len(fenced) > 0:
		return "node " + strings.Join(fenced, " and node ") + " is fenced: the record of the pair is lost, or it names another node, and a person must decide which data counts",
			append([]string{"do not delete the pod of a fenced node and do not drain its worker before you have decided: a restart decides for the data of the other node",
				"read the reason of the node, then docs/operations.md#when-a-node-or-the-record-is-lost and docs/operations.md#the-record-in-kubernetes"}, promote...)
	case len(waiting) == 1:
		other := pair.Other(waiting[0])
		return fmt.Sprintf("both nodes have stopped, node %s is back and waits for node %s, which may have writes that node %s has lost", waiting[0], other, waiting[0]),
			append([]string{fmt.Sprintf("start node %s again, on its disk: the pair then serves without any other action; see its pod: %s", other, x.pods(other))}, promote...)
	case len(waiting) > 1:
		return "both nodes have rebooted, and each waits for the other: they are not connected",
			append([]string{"check the network between the workers of both nodes: the pair serves as soon as the nodes are connected; see their pods: " + x.pods("")}, promote...)
	case len(silent) > 1:
		return "neither node answers the operator",
			append([]string{"start the workers and the pods of the pair again: " + x.pods("")}, promote...)
	}
	return "no node may serve: the reasons of the nodes say what each waits for",
		append([]string{"do what the reasons say; docs/operations.md#when-a-node-or-the-record-is-lost explains them; the pods are: " + x.pods("")}, promote...)
}

// pods is the command that shows the pods of a pair, or of one node of it.
func (x *exam) pods(node string) string {
	s := fmt.Sprintf("kubectl get pods -n %s -o wide -l %s={name}", x.Namespace, v1alpha1.LabelPair)
	if node != "" {
		s += "," + v1alpha1.LabelNode + "=" + node
	}
	return s
}

// pairNotStarted: a new pair that never served.
func pairNotStarted(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Status == "True" || p.Status.Epoch > 0 || x.age(c.LastTransitionTime) < startAfter {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "the pair has never served", Cause: c.Message, Evidence: append([]string{x.quote(*c)}, nodes(p)...),
			Procedure: []string{"do what the message says; the pods are: " + x.pods(""), "see docs/kubernetes.md#objects, which names the causes and the fields to change"}})
	}
}

// exposed reports whether a pair serves with one copy of the data. A node that is in sync has its
// peer in sync too: then only the operator cannot reach the other node.
func exposed(p *v1alpha1.TargetPair) bool {
	return isFalse(p.Status.Conditions, v1alpha1.ConditionInSync) && isTrue(p.Status.Conditions, v1alpha1.ConditionReady) &&
		!slices.ContainsFunc(p.Status.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Phase == phaseInSync })
}

// copying is the node that copies its data to the other node; nil if no node does.
func copying(p *v1alpha1.TargetPair) *v1alpha1.NodeStatus {
	for i := range p.Status.Nodes {
		if n := &p.Status.Nodes[i]; n.Phase == phaseResyncing {
			return n
		}
	}
	return nil
}

// singleCopy: one node has all data, and the other one does not. While the data is copied to the
// other node, a person can only wait.
func singleCopy(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		c, long := x.failing(p.Status.Conditions, v1alpha1.ConditionInSync)
		if !long || !exposed(p) || stuck(x, p) || x.age(p.CreationTimestamp) < startAfter {
			continue
		}
		evidence := append([]string{x.quote(c)}, nodes(p)...)
		if u := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionUpToDate); u != nil && u.Status != "True" {
			evidence = append(evidence, x.quote(*u)) // what the operator does about it
		}
		if n := copying(p); n != nil {
			if x.age(c.LastTransitionTime) < longPatience {
				continue
			}
			x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "only one node has all data of the pair", Cause: "node " + n.Name + " copies the data to node " + pair.Other(n.Name), Evidence: evidence,
				Procedure: []string{"wait; follow it with kubectl gemel status; do not stop node " + n.Name + " meanwhile", "see docs/kubernetes.md#what-happens-when-"}})
			continue
		}
		cause, missing := "the other node does not take part", "NODE"
		for j := range p.Status.Nodes {
			if n := &p.Status.Nodes[j]; !n.Serves() {
				missing, cause = n.Name, fmt.Sprintf("node %s is %s", n.Name, n.Phase)
				if n.Reason != "" {
					cause += ": " + n.Reason
				}
			}
		}
		x.add(kindPair, p.Name, Finding{Severity: Critical, Problem: "only one node has all data of the pair: the loss of this node loses data", Cause: cause, Evidence: evidence,
			Procedure: []string{"start node " + missing + " again, the other node then copies its data to it: " + x.pods(missing),
				"if it ends again and again, its last message is in the reason: see docs/operations.md#a-node-that-ends-by-itself and docs/operations.md#a-disk-that-fails",
				fmt.Sprintf("if its worker or disk is lost for good: kubectl patch targetpair {name} --type=merge -p '{\"spec\":{\"replace\":{\"node\":\"%s\"}}}'; see docs/kubernetes.md#a-node-or-its-disk-is-lost-for-good", missing)}})
	}
}

// nodeUnreachable: the operator does not reach a node that is in sync.
func nodeUnreachable(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		c, long := x.failing(p.Status.Conditions, v1alpha1.ConditionReachable)
		if !long || x.down(p) || exposed(p) || !isTrue(p.Status.Conditions, v1alpha1.ConditionReady) {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "a node does not answer the operator, and the other node says that both are in sync", Cause: c.Message, Evidence: append([]string{x.quote(c)}, nodes(p)...),
			Procedure: []string{"check the network from the operator to the control port of the node (NetworkPolicy, the worker), and the log of its pod: " + x.pods(""),
				"until it answers, LUNs on it are not changed, and no node is restarted; see docs/kubernetes.md#security for the ports"}})
	}
}
