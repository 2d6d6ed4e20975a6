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

// The first pool holds a node's state. A running node gets another pool only when the volume exists
// or is certain to be provisioned: a pod that waits for a volume serves no host, and a pool cannot
// be removed. A condition says what a pool waits for; nothing else waits for it.

// mounts are the volumes of each node beside the one with its state.
type mounts map[string]mount

// mount has the additional pools, sorted by name, and the members of all pools, sorted by pool and
// name.
type mount struct {
	pools   []v1alpha1.Pool
	members []member
}

// disk is a kind of volume that a node has, of a pool or of a pool's volumes.
type disk struct {
	field string // of the StorageCluster, for messages
	pool  string
	class string
	size  resource.Quantity
}

func diskOf(pool *v1alpha1.Pool) *disk {
	return &disk{"spec.pools[" + pool.Name + "]", pool.Name, pool.StorageClassName, pool.Size}
}

// PoolClaim is the name of the claim of an additional backing volume. The names it is made of have
// no dot, so it is unique.
func PoolClaim(pair, node string, disk int32, pool string) string {
	return ClaimName(pair, node, disk) + "." + pool
}

// ensurePools creates the claims of the additional pools and of members, and returns which nodes
// can mount them now. later is why some cannot yet; err is an error of the API server.
func (r *Reconciler) ensurePools(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair) (m mounts, later, err error) {
	m = mounts{}
	pools := slices.SortedFunc(slices.Values(c.Spec.Pools[1:]), func(a, b v1alpha1.Pool) int { return strings.Compare(a.Name, b.Name) })
	for i := range pools {
		pool := &pools[i]
		d := diskOf(pool)
		class, unfit, err := r.storageClass(ctx, d)
		if err != nil {
			return nil, nil, err
		}
		for _, n := range p.Spec.Nodes {
			why, err := r.ensureDisk(ctx, c, p, &n, d, class, PoolClaim(p.Name, n.Name, n.Disk, pool.Name), nil, unfit)
			switch {
			case err != nil:
				return nil, nil, err
			case why == nil:
				x := m[n.Name]
				x.pools = append(x.pools, *pool)
				m[n.Name] = x
			case later == nil:
				later = why
			}
		}
	}
	why, err := r.ensureMembers(ctx, c, p, m)
	if later == nil {
		later = why
	}
	return m, later, err
}

// ensureDisk creates the claim of one node's volume; why is what prevents the node from mounting
// it.
func (r *Reconciler) ensureDisk(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, n *v1alpha1.PairNode, d *disk, class *storagev1.StorageClass, name string, more map[string]string, unfit error) (why, err error) {
	claim, err := r.ensureClaim(ctx, c, p, n, d, class, name, more, unfit)
	if w, ok := asWait(err); ok {
		return w, nil
	}
	switch {
	case err != nil:
		return nil, err
	case claim.Spec.VolumeName != "" || n.Worker == "": // the scheduler finds a worker with all volumes
		return nil, nil
	case unfit != nil:
		return unfit, nil
	case class.Provisioner != staticProvisioner: // it provisions the volume when the pod is scheduled
		return nil, nil
	}
	ok, err := r.hasVolume(ctx, claim, n.Worker, d)
	if err != nil || ok {
		return nil, err
	}
	without := "until then no LUN can be created in the pool"
	if more != nil {
		without = "until then the pool does without it"
	}
	return waiting(v1alpha1.ReasonNoStorage, "%s: worker %s of node %s has no free volume of %s or more of the class %s: create a volume there; %s",
		d.field, n.Worker, n.Name, d.size.String(), d.class, without), nil
}

// staticProvisioner provisions no volumes.
const staticProvisioner = "kubernetes.io/no-provisioner"

// hasVolume reports whether a worker has a free volume for a claim, or one that is reserved for it.
func (r *Reconciler) hasVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, worker string, d *disk) (bool, error) {
	node := &corev1.Node{}
	if err := r.Get(ctx, client.ObjectKey{Name: worker}, node); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	var l corev1.PersistentVolumeList
	if err := r.List(ctx, &l); err != nil {
		return false, err
	}
	return slices.ContainsFunc(l.Items, func(v corev1.PersistentVolume) bool {
		return bindable(&v, claim, node, d.class, d.size)
	}), nil
}

// bindable reports whether the volume can be bound to the claim of a pod on the node.
func bindable(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, node *corev1.Node, class string, size resource.Quantity) bool {
	has := v.Spec.Capacity[corev1.ResourceStorage]
	ref := v.Spec.ClaimRef
	free := ref == nil && v.Status.Phase == corev1.VolumeAvailable || ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name
	block := v.Spec.VolumeMode != nil && *v.Spec.VolumeMode != corev1.PersistentVolumeFilesystem
	return free && !block && v.DeletionTimestamp.IsZero() && v.Spec.StorageClassName == class && has.Cmp(size) >= 0 &&
		v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil && matches(v.Spec.NodeAffinity.Required, node)
}

// matches reports whether a node matches at least one term of a selector, with all requirements of
// the term.
func matches(s *corev1.NodeSelector, node *corev1.Node) bool {
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

// storageClass of a disk; unfit is why it cannot provide backing volumes.
func (r *Reconciler) storageClass(ctx context.Context, d *disk) (class *storagev1.StorageClass, unfit, err error) {
	class = &storagev1.StorageClass{}
	switch err := r.Get(ctx, client.ObjectKey{Name: d.class}, class); {
	case apierrors.IsNotFound(err):
		return class, waiting(v1alpha1.ReasonInvalid, "%s.storageClassName: StorageClass %q does not exist; create it, or name another StorageClass in the StorageCluster", d.field, d.class), nil
	case err != nil:
		return nil, nil, err
	case class.Provisioner == v1alpha1.DriverName:
		return class, waiting(v1alpha1.ReasonInvalid, "%s.storageClassName: %q is a StorageClass of Gemel: backing volumes need a StorageClass of local disks", d.field, class.Name), nil
	}
	return class, nil, nil
}

// poolStatus is the status of the pools that every member has, as a node reports their backing
// volumes. recorded is the status before.
func poolStatus(c *v1alpha1.StorageCluster, s *targetv1.Status, recorded []v1alpha1.PoolStatus) (out []v1alpha1.PoolStatus) {
	volumes := s.Volumes
	if len(volumes) == 0 { // a release with one volume only
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

// wantedVolumes says which volumes a worker needs for a node.
func wantedVolumes(c *v1alpha1.StorageCluster) string {
	var parts []string
	for i := range c.Spec.Pools {
		pool := &c.Spec.Pools[i]
		parts = append(parts, fmt.Sprintf("of %s or more (spec.pools[%s].size) of the class %s (storageClassName)", pool.Size.String(), pool.Name, pool.StorageClassName))
	}
	return strings.Join(parts, " and one ")
}
