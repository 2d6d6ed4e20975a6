package doctor

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// pairIs sets the conditions and phases of the first pair.
func pairIs(o *Objects, since time.Duration, ready, inSync bool, message string, a, b v1alpha1.NodeStatus) {
	p := &o.Pairs[0]
	a.Name, b.Name = "a", "b"
	set(&p.Status.Conditions, v1alpha1.ConditionReady, ready, "PairDown", message, since)
	set(&p.Status.Conditions, v1alpha1.ConditionInSync, inSync, "Degraded", message, since)
	set(&p.Status.Conditions, v1alpha1.ConditionReachable, a.Phase != phaseUnknown && b.Phase != phaseUnknown, "Degraded", message, since)
	p.Status.Nodes = []v1alpha1.NodeStatus{a, b}
}

// back makes the first pair healthy again.
func back(o *Objects) { o.Pairs[0] = healthy(6).Pairs[0] }

func phase(p, reason string) v1alpha1.NodeStatus {
	return v1alpha1.NodeStatus{Phase: p, Reason: reason}
}

const waitText = "this node has rebooted and has not connected to its peer since: waiting for the peer to start (coldStart: Wait)"

var pairCases = []trouble{
	{"neither node answers", "PairDown", Critical, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, 2*time.Minute, false, false, "no node serves: node a: the node has no pod", phase("Unknown", "the node has no pod"), phase("Unknown", "the pod is not scheduled yet"))
		set(&o.LUNs[0].Status.Conditions, v1alpha1.ConditionReady, false, "PairDown", "pair main-p0: no node serves", time.Hour)
		set(&o.LUNs[0].Status.Conditions, v1alpha1.ConditionPublished, false, "PairDown", "pair main-p0: no node serves", time.Hour)
		set(&o.Snapshots[0].Status.Conditions, v1alpha1.ConditionReady, false, "NotConfirmed", "pair main-p0: no node serves", time.Hour)
		set(&o.Clusters[0].Status.Conditions, v1alpha1.ConditionReady, false, "PairDown", "main-p0: no node serves", time.Hour)
	}, map[string]func(*Objects){"gone": back, "a failover": func(o *Objects) {
		pairIs(o, 59*time.Second, false, false, "no node serves", phase("Unknown", ""), phase("Unknown", ""))
	}}, []string{"neither node answers", "the pod is not scheduled yet", "3 LUNs", "kubectl get pods -n gemel-system -o wide -l gemel.storage/pair=main-p0", "kubectl gemel pair promote main-p0 NODE", "--accept-loss"}},
	{"cold start", "PairDown", Critical, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, time.Hour, false, false, "no node serves", phase("Joining", waitText), phase("Unknown", "the node has no pod"))
	}, map[string]func(*Objects){"gone": back}, []string{"node a is back and waits for node b", "start node b again", "gemel.storage/node=b", "kubectl gemel pair promote main-p0 a says", "danger", "MEDIUM ERROR"}},
	{"cold start of both", "PairDown", Critical, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, time.Hour, false, false, "no node serves", phase("Joining", waitText), phase("Joining", waitText))
	}, map[string]func(*Objects){"gone": back}, []string{"not connected", "network between the workers"}},
	{"the record is lost", "PairDown", Critical, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, time.Hour, false, false, "no node serves", phase("Fenced", "the record was lost"), phase("Joining", "not a member"))
	}, map[string]func(*Objects){"gone": back}, []string{"node a is fenced", "do not delete the pod of a fenced node", "the record was lost"}},
	{"stores that are not trusted", "PairDown", Critical, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, time.Hour, false, false, "no node serves", phase("Joining", "the store is not trusted"), phase("Joining", "the store is not trusted"))
	}, map[string]func(*Objects){"gone": back}, []string{"the store is not trusted"}},
	{"no volume for it", "PairNotStarted", Warning, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, 20*time.Minute, false, false, "worker-1 has no free volume", phase("Unknown", ""), phase("Unknown", ""))
		o.Pairs[0].Status.Epoch = 0
	}, map[string]func(*Objects){"gone": back, "it starts": func(o *Objects) {
		pairIs(o, 14*time.Minute, false, false, "pods are made", phase("Unknown", ""), phase("Unknown", ""))
	}, "it has served": func(o *Objects) { o.Pairs[0].Status.Epoch = 1 }}, []string{"worker-1 has no free volume"}},
	{"a node is away", "SingleCopy", Critical, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, 3*time.Hour, true, false, "node b: the node has no pod", phase("Alone", ""), phase("Unknown", "the node has no pod"))
		set(&o.Pairs[0].Status.Conditions, v1alpha1.ConditionUpToDate, false, "Rolling", "node b will be restarted when both nodes are InSync", 3*time.Hour)
	}, map[string]func(*Objects){"gone": back, "a restart": func(o *Objects) {
		pairIs(o, 4*time.Minute, true, false, "node b restarts", phase("Alone", ""), phase("Unknown", ""))
	}, "a new pair": func(o *Objects) { o.Pairs[0].CreationTimestamp = ago(10 * time.Minute) }, "no node serves": func(o *Objects) {
		pairIs(o, 3*time.Hour, false, false, "no node serves", phase("Joining", ""), phase("Unknown", ""))
	}}, []string{"node b is Unknown: the node has no pod", "UpToDate is False since", "InSync is False since 2026-11-25T09:00:00Z (3h)", "node a on worker-1 is Alone", `{"spec":{"replace":{"node":"b"}}}`}},
	{"a node is being copied to", "SingleCopy", Warning, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, time.Hour, true, false, "node a is Resyncing", percent(40), phase("Joining", "the other node copies its data to this node"))
	}, map[string]func(*Objects){"gone": back, "not for long": func(o *Objects) {
		pairIs(o, 29*time.Minute, true, false, "node a is Resyncing", percent(40), phase("Joining", ""))
	}}, []string{"node a copies the data to node b", "resync 40%"}},
	{"the operator does not reach a node", "NodeUnreachable", Warning, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, time.Hour, true, true, "both nodes hold every acknowledged write, as node a reports", phase("InSync", ""), phase("Unknown", "the control API does not answer"))
	}, map[string]func(*Objects){"gone": back, "not for long": func(o *Objects) {
		pairIs(o, 4*time.Minute, true, false, "node b", phase("InSync", ""), phase("Unknown", ""))
	}, "the node is down": func(o *Objects) {
		pairIs(o, time.Hour, true, false, "node b", phase("Alone", ""), phase("Unknown", ""))
	}}, []string{"the control API does not answer", "NetworkPolicy"}},
	{"a process crashed", "NodeCrashed", Warning, "TargetPair/main-p0", crashed(time.Hour), map[string]func(*Objects){"gone": back, "long ago": crashed(25 * time.Hour)},
		[]string{"node a, at 2026-11-25T11:00:00Z: killed by signal SIGSEGV", "count 3", "kubectl logs -n", "a-process-that-crashes"}},
}

func crashed(before time.Duration) func(*Objects) {
	return func(o *Objects) {
		o.Pairs[0].Status.Nodes[0].Crashes = &v1alpha1.NodeCrashes{Count: 3, Last: "killed by signal SIGSEGV after 2s", Time: ago(before)}
	}
}

func percent(n int32) v1alpha1.NodeStatus {
	return v1alpha1.NodeStatus{Phase: "Resyncing", ResyncPercent: &n}
}

func TestPairs(t *testing.T) { check(t, pairCases) }
