package logicalunit

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/placement"
)

// consumer is the location of the worker that the LUN is for, or of those that it is restricted to;
// the zero value if no worker is known.
// The worker's own labels come before those that the driver was told: the provisioner remembers a
// worker's labels for as long as it repeats a request.
func (p *pass) consumer(ctx context.Context) placement.Location {
	c := p.lu.Spec.Consumer
	if c == nil {
		return placement.Location{Labels: common(p.lu.Spec.AccessibleFrom)}
	}
	out := placement.Location{Worker: c.Worker, Labels: map[string]string{}}
	for k, v := range c.Topology {
		out.Labels[k] = string(v)
	}
	maps.Copy(out.Labels, p.labelsOf(ctx, c.Worker))
	return out
}

// nearHost is the node of the pair that is nearer to a host than the other one; nil if there is
// none, if the host is not a worker (nil), or where the spec, the spread of a group or the other
// legs of a striped volume say where the LUN belongs. It is read from the cache alone: an attach
// waits for nothing because of it.
func (p *pass) nearHost(ctx context.Context, host *v1alpha1.Host) *targetv1.Near {
	if host == nil || p.lu.Spec.Leg != nil || p.lu.Spec.PreferredNode != "" || p.lu.Spec.PinnedNode != "" {
		return nil
	}
	var pair v1alpha1.TargetPair
	if err := p.Get(ctx, client.ObjectKey{Name: p.lu.Spec.Placement.Pair}, &pair); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot read the pair: the home of the LUN does not follow its host", "host", host.Name)
		return nil
	}
	at := []placement.Pair{placement.FromObject(&pair, 0)}
	p.locate(ctx, at)
	if node, by := at[0].Nearer(placement.Location{Worker: host.Name, Labels: p.labelsOf(ctx, host.Name)}); node != "" && p.staysSpread(ctx, node) {
		return &targetv1.Near{Node: node, By: by}
	}
	return nil
}

// common are the labels that all workers have that a LUN is for, as far as its terms say: if they
// are all in one zone or region, a LUN without a consumer is placed near it.
func common(terms []v1alpha1.TopologyTerm) map[string]string {
	if len(terms) == 0 {
		return nil
	}
	out := terms[0].Labels()
	for _, t := range terms[1:] {
		maps.DeleteFunc(out, func(k, v string) bool {
			have, ok := t.MatchLabels[k]
			return !ok || string(have) != v
		})
	}
	return out
}

// locate adds the labels of the workers to the nodes of the pairs.
func (p *pass) locate(ctx context.Context, pairs []placement.Pair) {
	for i := range pairs {
		for k := range pairs[i].Nodes {
			n := &pairs[i].Nodes[k]
			n.Labels = p.labelsOf(ctx, n.Worker)
		}
	}
}

// labelsOf a worker are those of its Kubernetes node, and of its Host if the node does not exist.
// Nearness is a preference, so a LUN is placed without labels that cannot be read.
func (p *pass) labelsOf(ctx context.Context, worker string) map[string]string {
	if worker == "" {
		return nil
	}
	var node corev1.Node
	err := p.Get(ctx, client.ObjectKey{Name: worker}, &node)
	if err == nil {
		return node.Labels
	}
	var host v1alpha1.Host
	if apierrors.IsNotFound(err) {
		if err = p.Get(ctx, client.ObjectKey{Name: worker}, &host); err == nil {
			return host.Spec.Topology
		}
	}
	if !apierrors.IsNotFound(err) {
		ctrl.LoggerFrom(ctx).Error(err, "cannot read the topology of a worker: the LUN is placed without it", "worker", worker)
	}
	return nil
}
