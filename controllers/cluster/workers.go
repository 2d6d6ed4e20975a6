package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// domainsOfPair is the number of failure domains of a pair: its nodes never share one.
const domainsOfPair = 2

// workers are the Nodes of Kubernetes, from the cache: they must not be changed.
func (r *Reconciler) workers(ctx context.Context) ([]corev1.Node, error) {
	l := &corev1.NodeList{}
	if err := r.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	return l.Items, nil
}

// possible are the pairs that can run on the existing workers: one with a single worker could not
// serve, so it is not created. short is why the others cannot. Pairs may share workers, and only
// the scheduler knows the disks: nothing else is checked here.
func possible(s *v1alpha1.StorageClusterSpec, next []newPair, nodes []corev1.Node) (out []newPair, short *metav1.Condition) {
	found := map[couple]string{} // by couple, so that each is looked at once
	var messages []string
	for _, x := range next {
		text, ok := found[x.couple]
		if !ok {
			text = shortage(s, x.couple, nodes)
			found[x.couple] = text
			if text != "" {
				messages = append(messages, text)
			}
		}
		if text == "" {
			out = append(out, x)
		}
	}
	if len(messages) > 0 {
		short = &metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTooFewNodes, Message: strings.Join(messages, "; ")}
	}
	return out, short
}

// shortage names the fields that exclude too many workers for a pair in a couple, "" if there are
// enough.
func shortage(s *v1alpha1.StorageClusterSpec, want couple, nodes []corev1.Node) string {
	selector := labels.SelectorFromSet(s.NodeSelector)
	domains := map[string]bool{}
	lost := map[string]int{} // why workers are excluded
	for i := range nodes {
		n := &nodes[i]
		switch domain := n.Labels[s.FailureDomainKey]; {
		case !selector.Matches(labels.Set(n.Labels)):
			lost["do not match spec.nodeSelector"]++
		case taint(s.Tolerations, n) != nil:
			lost["have the taint "+taint(s.Tolerations, n).Key+", which spec.tolerations lacks"]++
		case domain == "":
			lost["lack the label "+s.FailureDomainKey+" (spec.failureDomainKey)"]++
		default:
			domains[domain] = true
		}
	}
	if want != (couple{}) {
		return shortageOf(s, want, domains, reasons(lost))
	}
	if len(domains) >= domainsOfPair {
		return ""
	}
	found := "none of " + fmt.Sprint(len(nodes)) + " workers can run target nodes"
	if len(domains) == 1 {
		found = fmt.Sprintf("all workers that can run target nodes have the value %q", slices.Sorted(maps.Keys(domains))[0])
	}
	return fmt.Sprintf("spec.pairs: the two nodes of a pair need workers with different values of the label %s (spec.failureDomainKey), and %s: "+
		"add or label workers, or change spec.nodeSelector, spec.tolerations or spec.failureDomainKey", s.FailureDomainKey, found+reasons(lost))
}

// shortageOf is shortage for a couple of spec.domains.
func shortageOf(s *v1alpha1.StorageClusterSpec, want couple, domains map[string]bool, reasons string) string {
	var none []string
	for _, d := range want {
		if !domains[d] {
			none = append(none, strconv.Quote(d))
		}
	}
	if len(none) == 0 {
		return ""
	}
	return fmt.Sprintf("spec.domains: a pair between %s needs workers with these values of the label %s (spec.failureDomainKey), and no worker that can run target nodes has the value %s%s: "+
		"add or label workers, or change spec.domains, spec.nodeSelector or spec.tolerations", want, s.FailureDomainKey, strings.Join(none, " or "), reasons)
}

// reasons why workers are excluded, the most frequent first.
func reasons(lost map[string]int) string {
	var parts []string
	for _, why := range slices.SortedFunc(maps.Keys(lost), func(x, y string) int { return cmp.Or(cmp.Compare(lost[y], lost[x]), cmp.Compare(x, y)) }) {
		parts = append(parts, fmt.Sprintf("%d %s", lost[why], why))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

// taint of a worker that target pods do not tolerate. Taints of a worker's health are tolerated by
// every target pod, and a cordon is temporary.
func taint(tolerations []corev1.Toleration, n *corev1.Node) *corev1.Taint {
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(x corev1.Toleration) bool { return x.ToleratesTaint(klog.Background(), t, false) }) {
			return t
		}
	}
	return nil
}
