package pair

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// drainTime is how long a drain holds unless it is renewed. It ends by itself if no operator
// continues the roll.
const drainTime = 300 * time.Second

// drainedBy begins the reason of every drain of the operator. The operator renews and ends only
// such drains: another one is of an administrator.
const drainedBy = v1alpha1.OperatorManager + ": "

// drain moves all LUNs away from a node that is about to be restarted, and lets none move to it:
// hosts see a pause of milliseconds instead of a failover. It is called for a node without LUNs
// too, because the pair moves LUNs by itself. Repeating it is harmless.
//
// Crash windows: the drain stands in the pair, not here. If the operator crashes after the drain,
// the next operator finds the drain in the status of the nodes: it restarts the node, or ends the
// drain if the spec was reverted meanwhile.
func (r *Reconciler) drain(ctx context.Context, p *v1alpha1.TargetPair, v *view, n *nodeView) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTime)
	defer cancel()
	t, err := r.Targets.Node(ctx, p, n.name)
	if err != nil {
		return err
	}
	_, err = t.Drain(ctx, &targetv1.DrainRequest{Node: n.name, Seconds: uint32(drainTime.Seconds()), Reason: drainedBy + "node " + n.name + " is restarted"})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return r.transferOwnership(ctx, t, n)
	case err != nil:
		return waiting(v1alpha1.ReasonRolling, "node %s will be restarted; it cannot be drained yet: %v", n.name, err)
	}
	if _, o := v.drained(); o.GetDrainedNode() != n.name {
		r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonDrained, "Drain", fmt.Sprintf("node %s is drained: node %s owns its LUNs until all nodes are restarted", n.name, Other(n.name)))
	}
	return nil
}

// transferOwnership moves all LUNs that a node owns to the other node. Nodes of releases that know
// no Drain move no LUN by themselves.
func (r *Reconciler) transferOwnership(ctx context.Context, t targetv1.TargetServiceClient, n *nodeView) error {
	if len(n.status.OwnedLuns) == 0 {
		return nil
	}
	to := Other(n.name)
	if _, err := t.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: to}); err != nil {
		return waiting(v1alpha1.ReasonRolling, "node %s will be restarted; its LUNs cannot be moved to node %s yet: %v", n.name, to, err)
	}
	return nil
}

// drained is the drain of the operator that stands, and a serving node that reports it; nil without
// one.
func (v *view) drained() (*nodeView, *targetv1.Ownership) {
	for i := range v.nodes {
		n := &v.nodes[i]
		o := n.status.GetOwnership()
		if n.serves() && o.GetDrainedNode() != "" && strings.HasPrefix(o.DrainReason, drainedBy) {
			return n, o
		}
	}
	return nil, nil
}

// keepDrain renews the drain of the operator while a roll is under way, so that no LUN moves home
// between its steps, and ends it when the roll is done. It never holds up the roll: what fails is
// tried again by the next reconcile, and a drain that is not ended expires.
func (r *Reconciler) keepDrain(ctx context.Context, p *v1alpha1.TargetPair, v *view, done bool) {
	n, o := v.drained()
	// Times are those of the nodes' clocks: a skew only makes the renewal earlier or later.
	if o == nil || !done && o.DrainedUntil.AsTime().Sub(r.now()) >= drainTime/2 {
		return
	}
	req := &targetv1.DrainRequest{Node: o.DrainedNode, Seconds: uint32(drainTime.Seconds()), Reason: o.DrainReason}
	if done {
		req.Seconds = 0
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	t, err := r.Targets.Node(ctx, p, n.name)
	if err == nil {
		_, err = t.Drain(ctx, req)
	}
	switch {
	case err != nil:
		log.FromContext(ctx).Info("cannot renew or end the drain", "node", o.DrainedNode, "seconds", req.Seconds, "err", err.Error())
	case done:
		r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonDrainEnded, "Drain", fmt.Sprintf("node %s is no longer drained: its LUNs return to it when their hosts can use it", o.DrainedNode))
	}
}
