package pair

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/apply"
)

// annotationRevision on a pod is the revision that it was created from.
const annotationRevision = "gemel.storage/revision"

// roll updates the pods to the spec, one node at a time: the node is drained, its pod is deleted,
// and nothing else happens until both nodes are in sync again. The drain stands until the next
// node is drained, or until both nodes have the spec and are in sync. A pod that does not serve is
// deleted at once if the other node serves or if none ever has: the new revision may fix it.
//
// Crash windows: every step is decided from the observed state. A terminating pod is waited for,
// and a pod whose restart was recorded but not carried out is restarted.
func (r *Reconciler) roll(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, m mounts, v *view) error {
	stale, err := r.stale(ctx, c, p, m, v)
	r.keepDrain(ctx, p, v, err == nil && len(stale) == 0 && v.inSync())
	if err != nil || len(stale) == 0 {
		return err
	}
	// A recorded restart comes before any other, even if the spec was reverted meanwhile: another
	// operator may be about to carry it out. See recordRestart.
	if n := recordedRestart(p, v); n != nil {
		stale = []*nodeView{n}
	}
	for _, n := range stale {
		other := &v.nodes[slices.IndexFunc(v.nodes[:], func(x nodeView) bool { return x.name != n.name })]
		if !n.serves() && (other.serves() || p.Status.Epoch == 0) {
			return r.restart(ctx, p, n, "the node does not serve")
		}
	}
	if !v.inSync() {
		return waiting(v1alpha1.ReasonRolling, "node %s will be restarted when both nodes are InSync: %s", stale[0].name, reasons(v))
	}
	// The node that owns fewer LUNs goes first, so that fewer LUNs move twice.
	n := slices.MinFunc(stale, func(x, y *nodeView) int { return len(x.status.OwnedLuns) - len(y.status.OwnedLuns) })
	if err := r.drain(ctx, p, v, n); err != nil {
		return err
	}
	return r.restart(ctx, p, n, "the node must run "+r.image(c)+with(m[n.name]))
}

// stale are the nodes whose pods differ from the spec; an error if a pod is missing or terminating.
func (r *Reconciler) stale(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, m mounts, v *view) (stale []*nodeView, err error) {
	for i := range v.nodes {
		n := &v.nodes[i]
		if n.pod == nil {
			return nil, waiting(v1alpha1.ReasonProgressing, "the pod of node %s is being created", n.name)
		}
		if !n.pod.DeletionTimestamp.IsZero() {
			if r.stuckTerminating(p, n) {
				return nil, r.forceDelete(ctx, p, n)
			}
			return nil, waiting(v1alpha1.ReasonRolling, "node %s is being restarted", n.name)
		}
		if n.revision() != r.revision(c, p, p.Spec.Nodes[i], m) {
			stale = append(stale, n)
		}
	}
	return stale, nil
}

// with names the additional pools, and the members of all pools.
func with(m mount) string {
	var pools, members []string
	for i := range m.pools {
		pools = append(pools, m.pools[i].Name)
	}
	for _, x := range m.members {
		members = append(members, x.pool+"/"+x.name)
	}
	text := ""
	if len(pools) > 0 {
		text = " with the pools " + strings.Join(pools, ", ")
	}
	if len(members) > 0 {
		text += " with the members " + strings.Join(members, ", ")
	}
	return text
}

// stuckTerminating reports whether a terminating pod needs a forced deletion: its worker is gone,
// and the node has another disk. It does not matter whether the pod still runs: the record no
// longer names its disk.
func (r *Reconciler) stuckTerminating(p *v1alpha1.TargetPair, n *nodeView) bool {
	i := slices.IndexFunc(p.Spec.Nodes, func(x v1alpha1.PairNode) bool { return x.Name == n.name })
	want := ClaimName(p.Name, n.name, p.Spec.Nodes[i].Disk)
	mine := slices.ContainsFunc(n.pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == want
	})
	return !mine && r.now().After(n.pod.DeletionTimestamp.Add(forceDeleteAfter))
}

// forceDeleteAfter the end of a pod's grace period.
const forceDeleteAfter = 30 * time.Second

func (r *Reconciler) forceDelete(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView) error {
	r.recordEvent(p, corev1.EventTypeWarning, v1alpha1.ReasonRolling, "Abandon", fmt.Sprintf("pod %s on worker %s does not terminate and is deleted by force; the new pod of node %s has another disk", n.pod.Name, n.pod.Spec.NodeName, n.name))
	if err := r.Delete(ctx, n.pod, client.Preconditions{UID: &n.pod.UID}, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		return err
	}
	return waiting(v1alpha1.ReasonRolling, "node %s is being replaced", n.name)
}

// annotationRestarting names the node and the pod of the last recorded restart.
const annotationRestarting = "gemel.storage/restarting"

func restartKey(n *nodeView) string { return n.name + "@" + string(n.pod.UID) }

// recordedRestart is the node whose restart was recorded and whose pod has not been deleted yet.
func recordedRestart(p *v1alpha1.TargetPair, v *view) *nodeView {
	for i := range v.nodes {
		if n := &v.nodes[i]; n.pod != nil && p.Annotations[annotationRestarting] == restartKey(n) {
			return n
		}
	}
	return nil
}

// recordRestart records which pod is about to be deleted, unless the pair has changed since it was
// read: if two operators with different caches run for a moment, one succeeds. The other finds this
// pod recorded while it exists, and after that a node that must be in sync again before the next
// restart.
func (r *Reconciler) recordRestart(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView) error {
	if p.Annotations[annotationRestarting] == restartKey(n) {
		return nil
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[annotationRestarting] = restartKey(n)
	err := r.Update(ctx, p)
	if apierrors.IsConflict(err) {
		return waiting(v1alpha1.ReasonRolling, "node %s will be restarted; the TargetPair has changed and is read again", n.name)
	}
	return err
}

func (r *Reconciler) restart(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView, why string) error {
	if err := r.recordRestart(ctx, p, n); err != nil {
		return err
	}
	r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonRolling, "Restart", fmt.Sprintf("node %s is restarted: %s", n.name, why))
	if err := r.Delete(ctx, n.pod, client.Preconditions{UID: &n.pod.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return waiting(v1alpha1.ReasonRolling, "node %s is being restarted: %s", n.name, why)
}

// replace gives a node a new disk, and another worker if the spec names one or the former one is
// gone. The former disk is kept. The other node must serve, because the new disk is copied from it.
func (r *Reconciler) replace(ctx context.Context, p *v1alpha1.TargetPair) error {
	want := p.Spec.Replace
	switch {
	case want == nil:
		return r.clearReplaced(ctx, p)
	case p.Status.Replaced != nil && *p.Status.Replaced == *want:
		return nil
	}
	i := slices.IndexFunc(p.Spec.Nodes, func(n v1alpha1.PairNode) bool { return n.Name == want.Node })
	if want.Member != "" {
		if err := r.replaceMember(ctx, p, &p.Spec.Nodes[i], want); err != nil {
			return err
		}
		before := p.DeepCopy()
		p.Status.Replaced = want.DeepCopy()
		return apply.PatchStatus(ctx, r, p, before)
	}
	v := r.observe(ctx, p)
	other := &v.nodes[slices.IndexFunc(v.nodes[:], func(x nodeView) bool { return x.name != want.Node })]
	if !other.serves() {
		return waiting(v1alpha1.ReasonInUse, "spec.replace: node %s is not replaced while node %s does not serve, because the new node is copied from that node (%s)",
			want.Node, other.name, reasons(v))
	}
	// The number of the disk is written first, with the request that it is for: after a crash
	// before the status is written, the disk is not changed a second time.
	if n := &p.Spec.Nodes[i]; p.Annotations[annotationReplacing] != replaceKey(want) {
		n.Disk++
		n.Worker = want.Worker
		if err := r.followWorker(ctx, p, n, want.Worker); err != nil {
			return err
		}
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[annotationReplacing] = replaceKey(want)
		if err := r.Update(ctx, p); err != nil {
			return err
		}
		r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonRolling, "Replace", fmt.Sprintf("node %s gets an empty disk, %s; the former disk is kept", n.Name, ClaimName(p.Name, n.Name, n.Disk)))
	}
	before := p.DeepCopy()
	p.Status.Replaced = want.DeepCopy()
	return apply.PatchStatus(ctx, r, p, before)
}

// clearReplaced clears the last request after its removal from the spec, so that the same
// replacement can be requested again.
func (r *Reconciler) clearReplaced(ctx context.Context, p *v1alpha1.TargetPair) error {
	if _, ok := p.Annotations[annotationReplacing]; ok {
		delete(p.Annotations, annotationReplacing)
		if err := r.Update(ctx, p); err != nil {
			return err
		}
	}
	if p.Status.Replaced == nil {
		return nil
	}
	before := p.DeepCopy()
	p.Status.Replaced = nil
	return apply.PatchStatus(ctx, r, p, before)
}

// annotationReplacing is the request that the current disks were created for.
const annotationReplacing = "gemel.storage/replacing"

func replaceKey(x *v1alpha1.Replace) string {
	if x.Member != "" {
		return x.Node + "/" + x.Member
	}
	return x.Node + "@" + x.Worker
}
