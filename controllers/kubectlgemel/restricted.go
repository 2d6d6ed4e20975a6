package kubectlgemel

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// restricted says which workers a LUN is for, if not for all, and what has said so.
func restricted(ch *chain, lu *v1alpha1.LogicalUnit) {
	if len(lu.Spec.AccessibleFrom) == 0 {
		return
	}
	by := cmp.Or(lu.Annotations[v1alpha1.AnnotationRestricted], "pool or StorageClass") // the object was recreated from the disks
	ch.link(true, "restricted", fmt.Sprintf("to workers with %s, by %s", v1alpha1.TermsText(lu.Spec.AccessibleFrom), by), "")
}

// limits are the workers that new volumes of a class are for.
type limits struct {
	class   *storagev1.StorageClass
	cluster string
	pool    *v1alpha1.Pool // nil: it does not exist
}

func (l limits) none() bool {
	return len(l.class.AllowedTopologies) == 0 && (l.pool == nil || len(l.pool.AccessibleFrom) == 0)
}

// String says what restricts.
func (l limits) String() string {
	var out []string
	if l.pool != nil && len(l.pool.AccessibleFrom) > 0 {
		out = append(out, fmt.Sprintf("pool %s of StorageCluster %s is for workers with %s", l.pool.Name, l.cluster, v1alpha1.TermsText(l.pool.AccessibleFrom)))
	}
	if len(l.class.AllowedTopologies) > 0 {
		var terms []string
		for _, t := range l.class.AllowedTopologies {
			var labels []string
			for _, e := range t.MatchLabelExpressions {
				labels = append(labels, e.Key+"="+strings.Join(e.Values, "/"))
			}
			terms = append(terms, strings.Join(labels, ", "))
		}
		out = append(out, fmt.Sprintf("StorageClass %s (allowedTopologies) is for workers with %s", l.class.Name, strings.Join(terms, " or ")))
	}
	return strings.Join(out, "; ")
}

// allow reports whether volumes may be used on a worker with these labels.
func (l limits) allow(labels map[string]string) bool {
	allowed := len(l.class.AllowedTopologies) == 0 || slices.ContainsFunc(l.class.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			v, ok := labels[e.Key]
			return !ok || !slices.Contains(e.Values, v)
		})
	})
	return allowed && (l.pool == nil || v1alpha1.Reached(l.pool.AccessibleFrom, labels))
}

// keys of labels that tell the workers apart.
func (l limits) keys() (out []string) {
	for _, t := range l.class.AllowedTopologies {
		for _, e := range t.MatchLabelExpressions {
			out = append(out, e.Key)
		}
	}
	if l.pool != nil {
		for _, t := range l.pool.AccessibleFrom {
			for k := range t.MatchLabels {
				out = append(out, k)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// limitsOf the class of a claim; nil if it is not of Gemel.
func limitsOf(ctx context.Context, c client.Reader, pvc *corev1.PersistentVolumeClaim) (*limits, error) {
	name := pvc.Annotations[corev1.BetaStorageClassAnnotation]
	if name == "" && pvc.Spec.StorageClassName != nil {
		name = *pvc.Spec.StorageClassName
	}
	if name == "" {
		return nil, nil
	}
	l := &limits{class: &storagev1.StorageClass{}}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, l.class); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if l.class.Provisioner != v1alpha1.DriverName {
		return nil, nil
	}
	l.cluster = l.class.Parameters[v1alpha1.ParamCluster]
	cluster := &v1alpha1.StorageCluster{}
	if err := c.Get(ctx, client.ObjectKey{Name: l.cluster}, cluster); err != nil {
		return l, client.IgnoreNotFound(err)
	}
	l.pool = cluster.Spec.Pool(l.class.Parameters[v1alpha1.ParamPool])
	return l, nil
}

// waiting says which workers the pods of an unbound claim can be scheduled to, if not all. The
// scheduler says only that workers have not enough storage.
func waiting(ctx context.Context, c client.Reader, ch *chain, pvc *corev1.PersistentVolumeClaim) {
	unreadable := func(err error) {
		ch.link(true, "restricted", fmt.Sprintf("unknown, because it cannot be read: %v", err), "")
	}
	l, err := limitsOf(ctx, c, pvc)
	switch {
	case err != nil:
		unreadable(err)
		return
	case l == nil || l.none():
		return
	}
	var nodes corev1.NodeList
	var plugins storagev1.CSINodeList
	if err := c.List(ctx, &nodes); err != nil {
		unreadable(err)
		return
	}
	if err := c.List(ctx, &plugins); err != nil {
		unreadable(err)
		return
	}
	reported := map[string][]string{} // by worker with the node plugin
	for _, p := range plugins.Items {
		for _, d := range p.Spec.Drivers {
			if d.Name == v1alpha1.DriverName {
				reported[p.Name] = d.TopologyKeys
			}
		}
	}
	var allowed, silent []string
	missing := ""
	for _, n := range nodes.Items {
		keys, ok := reported[n.Name]
		if !ok || !l.allow(n.Labels) {
			continue
		}
		allowed = append(allowed, n.Name)
		for _, k := range l.keys() {
			if _, has := n.Labels[k]; has && !slices.Contains(keys, k) {
				silent, missing = append(silent, n.Name), k
				break
			}
		}
	}
	switch {
	case len(allowed) == 0:
		ch.link(false, "restricted", fmt.Sprintf("%s, and no worker with the node plugin is", l),
			"label the workers that reach the pairs and restart their pods of gemel-csi-node, or change what restricts")
	case len(silent) == len(allowed):
		ch.link(false, "restricted", fmt.Sprintf("%s, but the node plugin does not report the label %s, for example on worker %s", l, missing, silent[0]),
			"name the label in node.topologyKeys of the chart (not for zone and region), and restart the pods of gemel-csi-node")
	default:
		ch.link(true, "restricted", fmt.Sprintf("%s: %d of %d workers, for example %s", l, len(allowed), len(reported), allowed[0]), "")
	}
}
