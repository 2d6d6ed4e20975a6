package pair

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// The first pool is what a node lives on. Another one is given to a node that runs already only once its volume is there or sure to come:
// a pod that waits for a volume serves nobody, and a pool cannot be taken back. What it waits for is told, and nothing else waits for it.

// mounts are the pools beside the first one that each node has, in the order of their names.
type mounts map[string][]v1alpha1.Pool

// PoolClaim is the name of the claim of one more backing volume. A dot is in no name that it is made of, so that no two are alike.
func PoolClaim(pair, node string, disk int32, pool string) string {
	return ClaimName(pair, node, disk) + "." + pool
}

// more makes the claims of the pools beside the first one, and tells which nodes may have them now. later is why some may not yet; err is
// that of the API server.
func (r *Reconciler) more(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair) (m mounts, later, err error) {
	m = mounts{}
	pools := slices.SortedFunc(slices.Values(c.Spec.Pools[1:]), func(a, b v1alpha1.Pool) int { return strings.Compare(a.Name, b.Name) })
	for i := range pools {
		pool := &pools[i]
		class, unfit, err := r.class(ctx, pool)
		if err != nil {
			return nil, nil, err
		}
		for _, n := range p.Spec.Nodes {
			why, err := r.poolOf(ctx, p, &n, pool, class, unfit)
			switch {
			case err != nil:
				return nil, nil, err
			case why == nil:
				m[n.Name] = append(m[n.Name], *pool)
			case later == nil:
				later = why
			}
		}
	}
	return m, later, nil
}

// poolOf makes the claim of one node's backing volume in a pool; why is what keeps the node from having it.
func (r *Reconciler) poolOf(ctx context.Context, p *v1alpha1.TargetPair, n *v1alpha1.PairNode, pool *v1alpha1.Pool, class *storagev1.StorageClass, unfit error) (why, err error) {
	claim, err := r.claim(ctx, p, n, pool, class, PoolClaim(p.Name, n.Name, n.Disk, pool.Name), unfit)
	if w, ok := asWait(err); ok {
		return w, nil
	}
	switch {
	case err != nil:
		return nil, err
	case claim.Spec.VolumeName != "" || n.Worker == "": // without a worker, the scheduler finds one that has all
		return nil, nil
	case unfit != nil:
		return unfit, nil
	case class.Provisioner != staticProvisioner: // it makes one when the pod comes
		return nil, nil
	}
	ok, err := r.volumeFor(ctx, claim, n.Worker, pool)
	if err != nil || ok {
		return nil, err
	}
	return waiting(v1alpha1.ReasonNoStorage, "spec.pools[%s]: worker %s of node %s has no free volume of %s or more of the class %s: create one there, and the node uses it; until then no LUN can be created in the pool",
		pool.Name, n.Worker, n.Name, pool.Size.String(), pool.StorageClassName), nil
}

// staticProvisioner makes nothing: volumes are there, or not.
const staticProvisioner = "kubernetes.io/no-provisioner"

// volumeFor tells whether a worker has a free volume for a claim, or one that is meant for it.
func (r *Reconciler) volumeFor(ctx context.Context, claim *corev1.PersistentVolumeClaim, worker string, pool *v1alpha1.Pool) (bool, error) {
	node := &corev1.Node{}
	if err := r.Get(ctx, client.ObjectKey{Name: worker}, node); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	var l corev1.PersistentVolumeList
	if err := r.List(ctx, &l); err != nil {
		return false, err
	}
	return slices.ContainsFunc(l.Items, func(v corev1.PersistentVolume) bool { return takes(&v, claim, node, pool.StorageClassName, pool.Size) }), nil
}

// takes: the volume could be bound to the claim, by a pod on the node.
func takes(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, node *corev1.Node, class string, size resource.Quantity) bool {
	has := v.Spec.Capacity[corev1.ResourceStorage]
	ref := v.Spec.ClaimRef
	free := ref == nil && v.Status.Phase == corev1.VolumeAvailable || ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name
	block := v.Spec.VolumeMode != nil && *v.Spec.VolumeMode != corev1.PersistentVolumeFilesystem
	return free && !block && v.DeletionTimestamp.IsZero() && v.Spec.StorageClassName == class && has.Cmp(size) >= 0 &&
		v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil && reaches(v.Spec.NodeAffinity.Required, node)
}

// reaches evaluates a node selector: one of its terms, all of a term.
func reaches(s *corev1.NodeSelector, node *corev1.Node) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan}
	match := func(list []corev1.NodeSelectorRequirement, values k8slabels.Set) bool {
		for _, x := range list {
			q, err := k8slabels.NewRequirement(x.Key, operators[x.Operator], x.Values)
			if err != nil || !q.Matches(values) {
				return false
			}
		}
		return true
	}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 && match(t.MatchExpressions, node.Labels) &&
			match(t.MatchFields, k8slabels.Set{metav1.ObjectNameField: node.Name})
	})
}

// class of a pool; unfit is why it cannot hold backing volumes.
func (r *Reconciler) class(ctx context.Context, pool *v1alpha1.Pool) (class *storagev1.StorageClass, unfit, err error) {
	class = &storagev1.StorageClass{}
	switch err := r.Get(ctx, client.ObjectKey{Name: pool.StorageClassName}, class); {
	case apierrors.IsNotFound(err):
		return class, waiting(v1alpha1.ReasonInvalid, "spec.pools[%s].storageClassName: StorageClass %q does not exist; create it, or name another StorageClass in the StorageCluster", pool.Name, pool.StorageClassName), nil
	case err != nil:
		return nil, nil, err
	case class.Provisioner == v1alpha1.DriverName:
		return class, waiting(v1alpha1.ReasonInvalid, "spec.pools[%s].storageClassName: %q is a StorageClass of Gemel: backing volumes need a StorageClass of local disks", pool.Name, class.Name), nil
	}
	return class, nil, nil
}

// poolStatus is what a node says of the backing volumes, as pools: those that every member has. recorded is the status before.
func poolStatus(c *v1alpha1.StorageCluster, s *targetv1.Status, recorded []v1alpha1.PoolStatus) (out []v1alpha1.PoolStatus) {
	volumes := s.Volumes
	if len(volumes) == 0 { // of a release that knows one only
		volumes = []*targetv1.BackingVolume{{Name: v1alpha1.DefaultVolume, CapacityBytes: s.CapacityBytes, FreeBytes: s.FreeBytes}}
	}
	for _, v := range volumes {
		if len(v.Lacks) > 0 {
			continue
		}
		x := v1alpha1.PoolStatus{Name: c.Spec.PoolOf(v.Name), Capacity: resource.NewQuantity(int64(v.CapacityBytes), resource.BinarySI)}
		var before *resource.Quantity
		if i := slices.IndexFunc(recorded, func(t v1alpha1.PoolStatus) bool { return t.Name == x.Name }); i >= 0 {
			before = recorded[i].Free
		}
		x.Free = quantized(v.FreeBytes, before)
		out = append(out, x)
	}
	return out
}

// wants says what a worker needs for a node of its pools, for people.
func wants(c *v1alpha1.StorageCluster) string {
	var parts []string
	for i := range c.Spec.Pools {
		pool := &c.Spec.Pools[i]
		parts = append(parts, fmt.Sprintf("of %s or more (spec.pools[%s].size) of the class %s (storageClassName)", pool.Size.String(), pool.Name, pool.StorageClassName))
	}
	return strings.Join(parts, " and one ")
}
