package pair

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// domain is the failure domain that a node has to be scheduled in, "" if anywhere. Once the worker
// is known, only the worker counts: it has the disk, and a label that changes later must not keep
// the pod from starting again.
func domain(c *v1alpha1.StorageCluster, n v1alpha1.PairNode) string {
	if n.Worker != "" || len(c.Spec.Domains) == 0 {
		return ""
	}
	return n.Domain
}

// followWorker gives a node the failure domain of the worker that spec.replace names. Only nodes
// that were laid in a domain have one.
func (r *Reconciler) followWorker(ctx context.Context, p *v1alpha1.TargetPair, n *v1alpha1.PairNode, worker string) error {
	if n.Domain == "" || worker == "" {
		return nil
	}
	c, w := &v1alpha1.StorageCluster{}, &corev1.Node{}
	if err := r.Get(ctx, client.ObjectKey{Name: p.Spec.Cluster}, c); err != nil {
		return err
	}
	if err := r.Get(ctx, client.ObjectKey{Name: worker}, w); err != nil {
		return client.IgnoreNotFound(err) // its pod says that it cannot be scheduled
	}
	if d := w.Labels[c.Spec.FailureDomainKey]; d != "" {
		n.Domain = d
	}
	return nil
}

// annotationDomain on a claim of a node that was laid in a failure domain is KEY=VALUE, the label
// of its workers. Rebuild needs it.
const annotationDomain = "gemel.storage/domain"

func domainMark(c *v1alpha1.StorageCluster, n *v1alpha1.PairNode) map[string]string {
	if n.Domain == "" {
		return nil
	}
	return map[string]string{annotationDomain: c.Spec.FailureDomainKey + "=" + n.Domain}
}

// domain that a node was laid in when its newest claim was created.
func (t *traces) domain(node string) (key, value string) {
	if c := t.claims[node]; c != nil {
		key, value, _ = strings.Cut(c.Annotations[annotationDomain], "=")
	}
	return key, value
}

// unschedulable says which fields of the cluster prevent a node from being scheduled; message is
// the scheduler's.
func unschedulable(c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, node, message string) error {
	i := slices.IndexFunc(p.Spec.Nodes, func(n v1alpha1.PairNode) bool { return n.Name == node })
	key, where, fields := c.Spec.FailureDomainKey, "", "spec.nodeSelector, spec.tolerations or spec.failureDomainKey"
	if d := domain(c, p.Spec.Nodes[i]); d != "" {
		where = fmt.Sprintf(" has the value %q of %s (spec.domains: the pair was laid there when it was created),", d, key)
		fields = "spec.nodeSelector or spec.tolerations, or set spec.replace of the TargetPair with a worker elsewhere"
		if p.Status.Epoch == 0 { // there is nothing to copy from
			fields = "spec.nodeSelector or spec.tolerations, or change spec.domains and delete the TargetPair, which is empty"
		}
	}
	reason, fix := v1alpha1.ReasonTooFewNodes, "add or label workers, or change "+fields
	if text := strings.ToLower(message); strings.Contains(text, "persistent volume") || strings.Contains(text, "persistentvolume") || strings.Contains(text, "free storage") {
		reason, fix = v1alpha1.ReasonNoStorage, "create a volume there "+wantedVolumes(c)
	}
	return waiting(reason, "node %s cannot be scheduled (%s): the node needs a worker that%s matches spec.nodeSelector and has another value of %s (spec.failureDomainKey) than the worker of the other node, "+
		"with a free volume of the class of each pool: %s", node, message, where, key, fix)
}

// maxDomains is that of spec.domains.
const maxDomains = 32

// addDomains completes spec.domains of a rebuilt cluster. Bare: no StatefulSet shows them, and they
// are those that its pairs were laid in.
func addDomains(c *v1alpha1.StorageCluster, pairs []v1alpha1.TargetPair, bare bool) {
	sum := int32(0)
	for i := range c.Spec.Domains {
		sum += c.Spec.Domains[i].Pairs
	}
	c.Spec.Pairs = max(c.Spec.Pairs, sum) // the last pairs may have had no claims yet
	if !bare {
		return
	}
	for i := range pairs {
		n := pairs[i].Spec.Nodes
		if pairs[i].Spec.Cluster != c.Name || n[0].Domain == "" || n[1].Domain == "" {
			continue
		}
		k := slices.IndexFunc(c.Spec.Domains, func(d v1alpha1.Domains) bool {
			return slices.Contains(d.Between, n[0].Domain) && slices.Contains(d.Between, n[1].Domain)
		})
		switch {
		case k < 0 && len(c.Spec.Domains) == maxDomains:
			continue
		case k < 0:
			k, c.Spec.Domains = len(c.Spec.Domains), append(c.Spec.Domains, v1alpha1.Domains{Between: []string{n[0].Domain, n[1].Domain}})
		}
		c.Spec.Domains[k].Pairs++
	}
}
