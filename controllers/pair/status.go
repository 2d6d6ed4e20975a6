package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/apply"
	"github.com/gemel-storage/gemel/internal/exits"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// view is the observed state of a pair.
type view struct {
	nodes   [2]nodeView
	luns    []string // uuids
	known   bool     // luns
	orphans []string // LUNs without a LogicalUnit

	scrubs *v1alpha1.ScrubStatus // nil: not determined
}

// nodeView is the observed state of one node.
type nodeView struct {
	name   string
	pod    *corev1.Pod      // nil: there is none
	status *targetv1.Status // nil: it does not answer
	err    error
}

func (n *nodeView) phase() string {
	if n.status == nil {
		return "Unknown"
	}
	words := strings.Split(strings.TrimPrefix(n.status.Phase.String(), "PHASE_"), "_")
	for i, w := range words {
		words[i] = w[:1] + strings.ToLower(w[1:])
	}
	return strings.Join(words, "")
}

// serves reports whether hosts are served through this node.
func (n *nodeView) serves() bool {
	return pairclient.Serves(n.status.GetPhase())
}

func (n *nodeView) revision() string {
	if n.pod == nil {
		return ""
	}
	return n.pod.Annotations[annotationRevision]
}

// inSync reports whether both nodes are members with the same data.
func (v *view) inSync() bool {
	for i := range v.nodes {
		if s := v.nodes[i].status; s == nil || s.Phase != targetv1.Phase_PHASE_IN_SYNC {
			return false
		}
	}
	return true
}

// toldInSync returns the node that reports that both nodes are in sync, and the node that the
// operator cannot reach; nil if it is not so. A node reports it only while it hears the other node:
// what is missing then is the way from the operator.
func (v *view) toldInSync() (known, mute *nodeView) {
	for i := range v.nodes {
		n, o := &v.nodes[i], &v.nodes[1-i]
		if n.status.GetPhase() == targetv1.Phase_PHASE_IN_SYNC && o.status == nil {
			return n, o
		}
	}
	return nil, nil
}

// best is the node whose view of the record counts: the serving node with the highest epoch.
func (v *view) best() *nodeView {
	var best *nodeView
	for i := range v.nodes {
		n := &v.nodes[i]
		if n.status == nil || best != nil && (best.serves() && !n.serves() || best.serves() == n.serves() && best.status.Epoch >= n.status.Epoch) {
			continue
		}
		best = n
	}
	return best
}

// observe reads the status of both nodes. It returns no error: a node that does not answer is part
// of the observed state.
func (r *Reconciler) observe(ctx context.Context, p *v1alpha1.TargetPair) *view {
	v := &view{}
	type answer struct {
		i int
		s *targetv1.Status
		e error
	}
	c := make(chan answer, len(Nodes))
	for i, name := range Nodes {
		v.nodes[i].name = name
		pod := &corev1.Pod{}
		if r.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: PodName(p.Name, name)}, pod) == nil {
			v.nodes[i].pod = pod
		}
		go func() {
			ctx, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			t, err := r.Targets.Node(ctx, p, name)
			if err != nil {
				c <- answer{i, nil, err}
				return
			}
			s, err := t.GetStatus(ctx, &targetv1.GetStatusRequest{})
			c <- answer{i, s, err}
		}()
	}
	for range Nodes {
		a := <-c
		v.nodes[a.i].status, v.nodes[a.i].err = a.s, a.e
	}
	if v.nodes[0].status != nil || v.nodes[1].status != nil { // else neither node has answered
		if v.luns, v.known = r.luns(ctx, p); v.known {
			v.orphans = r.orphans(ctx, p, v.luns)
		}
	}
	return v
}

// orphans are LUNs without a LogicalUnit. An object has its placement before its LUN is created, so
// what the cache lacks is read once more from the API server.
func (r *Reconciler) orphans(ctx context.Context, p *v1alpha1.TargetPair, luns []string) []string {
	for _, reader := range []client.Reader{r.Client, r.Live} {
		units, err := index.Units(ctx, reader, index.UnitPair, p.Name)
		if err != nil {
			return p.Status.Orphans // unknown
		}
		placed := map[string]bool{}
		for i := range units {
			if at := units[i].Spec.Placement; at.On(p.Name) {
				placed[at.UUID] = true
			}
		}
		if luns = slices.DeleteFunc(slices.Clone(luns), func(id string) bool { return placed[id] }); len(luns) == 0 {
			return nil
		}
	}
	return luns[:min(len(luns), maxOrphans)]
}

// maxOrphans limits the orphans in a status.
const maxOrphans = 100

// luns are the UUIDs of the LUNs of a pair; known is false if neither node answers.
func (r *Reconciler) luns(ctx context.Context, p *v1alpha1.TargetPair) (ids []string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	for _, name := range Nodes {
		t, err := r.Targets.Node(ctx, p, name)
		if err != nil {
			continue
		}
		ids, known = nil, true
		for l, err := range pairclient.LUNs(ctx, t) {
			if err != nil {
				known = false
				break
			}
			ids = append(ids, l.Uuid)
		}
		if known {
			return ids, true
		}
	}
	return nil, false
}

// writeStatus writes the observed state and the result of the reconcile, if the status changes.
// Without the cluster the names of its pools are unknown: the status of the pools stays.
func (r *Reconciler) writeStatus(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, v *view, cause error) error {
	before := p.DeepCopy()
	s := &p.Status
	s.ObservedGeneration = p.Generation
	if b := v.best(); b != nil {
		s.TargetIQN, s.Epoch, s.Members = b.status.TargetIqn, int64(b.status.Epoch), b.status.Members
		if b.serves() {
			s.Capacity = resource.NewQuantity(int64(b.status.CapacityBytes), resource.BinarySI)
			s.Free = quantized(b.status.FreeBytes, s.Free)
			if c != nil {
				recorded := s.Pools
				s.Pools = poolStatus(c, b.status, recorded)
				r.setPromised(ctx, c, p.Name, s.Pools, recorded)
			}
		}
	}
	if v.known {
		s.LogicalUnits, s.Orphans = int32(len(v.luns)), v.orphans
	}
	if v.scrubs != nil && !equality.Semantic.DeepEqual(v.scrubs, &v1alpha1.ScrubStatus{}) {
		s.Scrub = v.scrubs
	}
	s.Ownership = r.ownership(ctx, p, v)
	var news []damageNews
	s.Damage, news = r.countDamage(ctx, p, v)
	s.Nodes = s.Nodes[:0:0]
	for i := range v.nodes {
		x := nodeStatus(&v.nodes[i], &before.Status)
		x.Members = membersBefore(&before.Status, x.Name)
		if c != nil && v.nodes[i].status != nil {
			x.Members = memberStatus(c, v.nodes[i].status, x.Members)
		}
		s.Nodes = append(s.Nodes, x)
	}
	for _, x := range conditions(v, cause) {
		x.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&s.Conditions, x)
	}
	setSpaceCondition(p)
	setPoolMetrics(p, before.Status.Pools)
	change := r.redundancy(s)
	if equality.Semantic.DeepEqual(before.Status, p.Status) {
		return nil
	}
	if err := apply.PatchStatus(ctx, r, p, before); err != nil {
		return err
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if old := meta.FindStatusCondition(before.Status.Conditions, c.Type); needsEvent(old, c) {
			r.recordCondition(p, c)
		}
	}
	r.recordScrub(ctx, p, before.Status.Scrub, s.Scrub, v)
	r.recordDamage(p, news)
	r.recordCrashes(p, &before.Status)
	if change {
		r.recordRedundancy(ctx, p)
	}
	return nil
}

// needsEvent reports whether a change of a condition is worth an event: changes of InSync, of
// space, and errors that need an administrator.
func needsEvent(old, c *metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionInSync:
		return old == nil || old.Status != c.Status || old.Message != c.Message
	case v1alpha1.ConditionSpaceAvailable:
		if old == nil {
			return c.Status != metav1.ConditionTrue
		}
		return old.Status != c.Status || old.Reason != c.Reason
	case v1alpha1.ConditionUpToDate:
		return (old == nil || old.Status != c.Status || old.Reason != c.Reason) &&
			slices.Contains([]string{v1alpha1.ReasonInvalid, v1alpha1.ReasonTooFewNodes, v1alpha1.ReasonNoStorage, v1alpha1.ReasonMissing, v1alpha1.ReasonInUse}, c.Reason)
	}
	return false
}

func (r *Reconciler) recordCondition(p *v1alpha1.TargetPair, c *metav1.Condition) {
	kind := corev1.EventTypeNormal
	if c.Status != metav1.ConditionTrue || c.Reason == v1alpha1.ReasonUnreachable {
		kind = corev1.EventTypeWarning
	}
	r.recordEvent(p, kind, c.Reason, c.Type, c.Message)
}

// quantized keeps the number of bytes in the status while it differs by less than 1%, to avoid a
// write of the status for each write of data.
func quantized(now uint64, before *resource.Quantity) *resource.Quantity {
	if before != nil {
		if d := int64(now) - before.Value(); max(d, -d) < before.Value()/100 {
			return before
		}
	}
	return resource.NewQuantity(int64(now), resource.BinarySI)
}

func nodeStatus(n *nodeView, before *v1alpha1.TargetPairStatus) v1alpha1.NodeStatus {
	s := v1alpha1.NodeStatus{Name: n.name, Phase: n.phase()}
	if n.pod != nil {
		s.Pod, s.Image = n.pod.Name, n.pod.Spec.Containers[0].Image
	}
	if n.status == nil {
		s.Reason, s.Crashes = unreachable(n), crashesBefore(before, n.name)
		return s
	}
	s.Reason, s.Owned, s.Crashes = n.status.Reason, int32(len(n.status.OwnedLuns)), crashes(n.status)
	if n.status.Phase != targetv1.Phase_PHASE_IN_SYNC {
		s.Reason = strings.TrimPrefix(s.Reason+leftPair(n), "; ")
	}
	if x := n.status.Resync; x != nil && x.Finished == nil && x.TotalBytes > 0 && n.status.Phase == targetv1.Phase_PHASE_RESYNCING {
		pct := int32(100 * x.DoneBytes / x.TotalBytes)
		s.ResyncPercent = &pct
	}
	return s
}

// unreachable says why a node does not answer, as far as its pod shows the cause.
func unreachable(n *nodeView) string {
	switch {
	case errors.Is(n.err, pairconn.ErrNoAddress):
		return pairconn.ErrNoAddress.Error()
	case n.pod == nil:
		return "the node has no pod"
	case n.pod.Spec.NodeName == "":
		for _, c := range n.pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Message != "" {
				return "the pod cannot be scheduled: " + c.Message
			}
		}
		return "the pod is not scheduled yet"
	}
	for _, c := range n.pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return fmt.Sprintf("the pod is waiting: %s %s%s", w.Reason, w.Message, lastMessage(c.LastTerminationState.Terminated))
		}
		if t := c.State.Terminated; t != nil {
			return fmt.Sprintf("the process exited with code %d: %s", t.ExitCode, t.Message)
		}
	}
	return "the control API does not answer" + leftPair(n)
}

// leftPair says that the previous process exited because its node left the pair, with its last
// message: the cause and, if it recurs, what to do. The kubelet has restarted it.
func leftPair(n *nodeView) string {
	if n.pod == nil {
		return ""
	}
	for _, c := range n.pod.Status.ContainerStatuses {
		if t := c.LastTerminationState.Terminated; t != nil && t.ExitCode == exits.Left {
			return fmt.Sprintf("; the previous process left the pair at %s (restarted %d times)%s", t.FinishedAt.UTC().Format(time.RFC3339), c.RestartCount, lastMessage(t))
		}
	}
	return ""
}

// lastMessage of a process says why it does not start.
func lastMessage(t *corev1.ContainerStateTerminated) string {
	if t == nil || strings.TrimSpace(t.Message) == "" {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(t.Message), "\n")
	return "; the last message of the process: " + lines[len(lines)-1]
}

func conditions(v *view, cause error) []metav1.Condition {
	cond := func(kind string, ok bool, reason, format string, args ...any) metav1.Condition {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
		if ok {
			c.Status = metav1.ConditionTrue
		}
		return c
	}
	var out []metav1.Condition
	serving := slices.ContainsFunc(v.nodes[:], func(n nodeView) bool { return n.serves() })
	var w *wait
	switch {
	case !serving && errors.As(cause, &w):
		out = append(out, cond(v1alpha1.ConditionReady, false, w.reason, "%s", w.message))
	case !serving && cause != nil:
		out = append(out, cond(v1alpha1.ConditionReady, false, v1alpha1.ReasonProgressing, "%v", cause))
	case !serving:
		out = append(out, cond(v1alpha1.ConditionReady, false, v1alpha1.ReasonPairDown, "no node serves: %s", reasons(v)))
	default:
		out = append(out, cond(v1alpha1.ConditionReady, true, v1alpha1.ReasonReady, "hosts are served"))
	}
	switch known, mute := v.toldInSync(); {
	case v.inSync():
		out = append(out, cond(v1alpha1.ConditionInSync, true, v1alpha1.ReasonReady, "both nodes hold every acknowledged write"))
	case known != nil:
		out = append(out, cond(v1alpha1.ConditionInSync, true, v1alpha1.ReasonUnreachable, "both nodes hold every acknowledged write, as node %s reports; the operator cannot reach node %s: %s", known.name, mute.name, unreachable(mute)))
	default:
		out = append(out, cond(v1alpha1.ConditionInSync, false, v1alpha1.ReasonDegraded, "%s", reasons(v)))
	}
	if mute := slices.IndexFunc(v.nodes[:], func(n nodeView) bool { return n.status == nil }); mute >= 0 {
		n := &v.nodes[mute]
		out = append(out, cond(v1alpha1.ConditionReachable, false, v1alpha1.ReasonDegraded, "node %s: %s", n.name, unreachable(n)))
	} else {
		out = append(out, cond(v1alpha1.ConditionReachable, true, v1alpha1.ReasonReady, "both nodes answer"))
	}
	switch {
	case errors.As(cause, &w):
		out = append(out, cond(v1alpha1.ConditionUpToDate, false, w.reason, "%s", w.message))
	case cause != nil:
		out = append(out, cond(v1alpha1.ConditionUpToDate, false, v1alpha1.ReasonProgressing, "%v", cause))
	default:
		out = append(out, cond(v1alpha1.ConditionUpToDate, true, v1alpha1.ReasonReady, "both nodes match the spec"))
	}
	return out
}

// reasons is what is wrong according to the nodes.
func reasons(v *view) string {
	var parts []string
	for i := range v.nodes {
		n := &v.nodes[i]
		switch {
		case n.status == nil:
			parts = append(parts, fmt.Sprintf("node %s: %s", n.name, unreachable(n)))
		case n.status.Reason != "":
			parts = append(parts, fmt.Sprintf("node %s (%s): %s%s", n.name, n.phase(), n.status.Reason, leftPair(n)))
		case n.status.Phase != targetv1.Phase_PHASE_IN_SYNC:
			parts = append(parts, fmt.Sprintf("node %s is %s%s", n.name, n.phase(), leftPair(n)))
		}
	}
	return strings.Join(parts, "; ")
}
