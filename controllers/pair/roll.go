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

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/apply"
)

// annotationRevision on a pod is what it was made from.
const annotationRevision = "gemel.storage/revision"

// roll brings pods to what the spec says, one node of the pair at a time: ownership is handed to the other node, the pod is
// taken down, and nothing else is touched before both are in sync again. A pod that does not serve anyway is taken down at
// once if the other one does or none ever has: it may be the new revision that fixes it.
//
// Crash windows: every step is decided from what is seen. A pod that is going down already is waited for, and one whose restart was
// written down and not carried out is restarted.
func (r *Reconciler) roll(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, m mounts, v *view) error {
	var stale []*nodeView
	for i := range v.nodes {
		n := &v.nodes[i]
		if n.pod == nil {
			return waiting(v1alpha1.ReasonProgressing, "node %s: its pod is being created", n.name)
		}
		if !n.pod.DeletionTimestamp.IsZero() {
			if r.abandoned(p, n) {
				return r.abandon(ctx, p, n)
			}
			return waiting(v1alpha1.ReasonRolling, "node %s is being restarted", n.name)
		}
		if n.revision() != r.revision(c, p, p.Spec.Nodes[i], m) {
			stale = append(stale, n)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	// A restart that was decided comes before any other, even if the spec was taken back meanwhile: another operator may be about
	// to carry it out. See decide.
	if n := underWay(p, v); n != nil {
		stale = []*nodeView{n}
	}
	for _, n := range stale {
		other := &v.nodes[slices.IndexFunc(v.nodes[:], func(x nodeView) bool { return x.name != n.name })]
		if !n.serves() && (other.serves() || p.Status.Epoch == 0) {
			return r.restart(ctx, p, n, "it does not serve")
		}
	}
	if !v.inSync() {
		return waiting(v1alpha1.ReasonRolling, "node %s will be restarted when both nodes are in sync: %s", stale[0].name, reasons(v))
	}
	// The one that owns less goes first: fewer LUNs move twice.
	n := slices.MinFunc(stale, func(x, y *nodeView) int { return len(x.status.OwnedLuns) - len(y.status.OwnedLuns) })
	if len(n.status.OwnedLuns) > 0 {
		if err := r.handOver(ctx, p, n); err != nil {
			return err
		}
	}
	return r.restart(ctx, p, n, "it must run "+r.image(c)+pooled(m[n.name]))
}

// pooled names the pools beside the first one.
func pooled(pools []v1alpha1.Pool) string {
	var names []string
	for i := range pools {
		names = append(names, pools[i].Name)
	}
	if len(names) == 0 {
		return ""
	}
	return " with the pools " + strings.Join(names, ", ")
}

// abandoned reports whether a pod that is going down will never be gone by itself: its worker is not there to say so, and
// the node has been given another disk. Whether it still runs does not matter: the record knows it no more.
func (r *Reconciler) abandoned(p *v1alpha1.TargetPair, n *nodeView) bool {
	i := slices.IndexFunc(p.Spec.Nodes, func(x v1alpha1.PairNode) bool { return x.Name == n.name })
	want := ClaimName(p.Name, n.name, p.Spec.Nodes[i].Disk)
	mine := slices.ContainsFunc(n.pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == want
	})
	return !mine && r.now().After(n.pod.DeletionTimestamp.Add(abandonAfter))
}

// abandonAfter a pod's grace period is over.
const abandonAfter = 30 * time.Second

func (r *Reconciler) abandon(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView) error {
	r.recordEvent(p, corev1.EventTypeWarning, v1alpha1.ReasonRolling, "Abandon", fmt.Sprintf("pod %s on worker %s does not terminate and is deleted by force; its successor has another disk", n.pod.Name, n.pod.Spec.NodeName))
	if err := r.Delete(ctx, n.pod, client.Preconditions{UID: &n.pod.UID}, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		return err
	}
	return waiting(v1alpha1.ReasonRolling, "node %s is being replaced", n.name)
}

// handOver moves everything that a node owns to the other one: hosts see a pause of milliseconds instead of a fail-over.
func (r *Reconciler) handOver(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTime)
	defer cancel()
	t, err := r.Targets.Node(ctx, p, n.name)
	if err != nil {
		return err
	}
	to := "a"
	if n.name == "a" {
		to = "b"
	}
	if _, err := t.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: to}); err != nil {
		return waiting(v1alpha1.ReasonRolling, "node %s will be restarted; its LUNs cannot be moved to node %s yet: %v", n.name, to, err)
	}
	return nil
}

// annotationRestarting is the node and the pod that the last restart was decided for.
const annotationRestarting = "gemel.storage/restarting"

func restartKey(n *nodeView) string { return n.name + "@" + string(n.pod.UID) }

// underWay is the node whose restart was decided and whose pod is still the one that it was decided for.
func underWay(p *v1alpha1.TargetPair, v *view) *nodeView {
	for i := range v.nodes {
		if n := &v.nodes[i]; n.pod != nil && p.Annotations[annotationRestarting] == restartKey(n) {
			return n
		}
	}
	return nil
}

// decide writes down which pod is taken down, if nobody has written to the pair since it was read: of two operators for a moment,
// whose pictures differ, one decides. The other one finds this pod named as long as it is there, and after that a node that has to be
// in sync again before the next.
func (r *Reconciler) decide(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView) error {
	if p.Annotations[annotationRestarting] == restartKey(n) {
		return nil
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[annotationRestarting] = restartKey(n)
	err := r.Update(ctx, p)
	if apierrors.IsConflict(err) {
		return waiting(v1alpha1.ReasonRolling, "node %s will be restarted; the pair has changed meanwhile and is checked again", n.name)
	}
	return err
}

func (r *Reconciler) restart(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView, why string) error {
	if err := r.decide(ctx, p, n); err != nil {
		return err
	}
	r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonRolling, "Restart", fmt.Sprintf("node %s is restarted: %s", n.name, why))
	if err := r.Delete(ctx, n.pod, client.Preconditions{UID: &n.pod.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return waiting(v1alpha1.ReasonRolling, "node %s is being restarted: %s", n.name, why)
}

// replace makes a node again: another disk, and another worker if one is named or the former one is gone. Its former disk is
// left as it is. The other node must serve: it is what the new one is copied from.
func (r *Reconciler) replace(ctx context.Context, p *v1alpha1.TargetPair) error {
	want := p.Spec.Replace
	switch {
	case want == nil:
		return r.replaced(ctx, p)
	case p.Status.Replaced != nil && *p.Status.Replaced == *want:
		return nil
	}
	i := slices.IndexFunc(p.Spec.Nodes, func(n v1alpha1.PairNode) bool { return n.Name == want.Node })
	v := r.look(ctx, p)
	other := &v.nodes[slices.IndexFunc(v.nodes[:], func(x nodeView) bool { return x.name != want.Node })]
	if !other.serves() {
		return waiting(v1alpha1.ReasonInUse, "spec.replace: node %s is not replaced while node %s does not serve, because the new node is copied from that node (%s)",
			want.Node, other.name, reasons(v))
	}
	// The claim's number is written first: a crash before the status is written repeats nothing, because the disk is another one
	// already (the status tells which request it was made for).
	if n := &p.Spec.Nodes[i]; p.Annotations[annotationReplacing] != replaceKey(want) {
		n.Disk++
		n.Worker = want.Worker
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

// replaced forgets the last request once it has been taken out of the spec, so that the same may be asked for again.
func (r *Reconciler) replaced(ctx context.Context, p *v1alpha1.TargetPair) error {
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

// annotationReplacing is the request that the present disks were made for.
const annotationReplacing = "gemel.storage/replacing"

func replaceKey(x *v1alpha1.Replace) string { return x.Node + "@" + x.Worker }
