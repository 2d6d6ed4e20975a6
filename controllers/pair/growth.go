package pair

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// growClaims requests the size of the spec for backing volumes that have less, where their class
// expands volumes; others keep their size, and a node gets a larger one with spec.replace. The node
// uses what its filesystem has, so it is not restarted. The error says what is not expanded yet,
// for which nothing else waits.
func (r *Reconciler) growClaims(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair) (later error) {
	for _, n := range p.Spec.Nodes {
		members, err := r.memberClaims(ctx, p, &n)
		if err != nil {
			return err
		}
		for i := range c.Spec.Pools {
			pool := &c.Spec.Pools[i]
			claim := PoolClaim(p.Name, n.Name, n.Disk, pool.Name)
			if i == 0 {
				claim = ClaimName(p.Name, n.Name, n.Disk)
			}
			later = cmp.Or(later, r.growClaim(ctx, diskOf(pool), claim))
			for k := range pool.Volumes {
				v := &pool.Volumes[k]
				d := &disk{fmt.Sprintf("spec.pools[%s].volumes[%s]", pool.Name, v.Name), pool.Name, v.StorageClassName, v.Size}
				for i := range v.Count {
					if now := members[pool.Name][memberName(v, i)]; now != nil {
						later = cmp.Or(later, r.growClaim(ctx, d, now.Name))
					}
				}
			}
		}
	}
	return later
}

// growClaim requests the size of a disk for its claim. A claim that is not bound keeps what it
// requests: the API server refuses to change it.
func (r *Reconciler) growClaim(ctx context.Context, d *disk, name string) error {
	claim := &corev1.PersistentVolumeClaim{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, claim); err != nil {
		return client.IgnoreNotFound(err)
	}
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound || !claim.DeletionTimestamp.IsZero() || has.Cmp(d.size) >= 0 {
		return nil
	}
	class := &storagev1.StorageClass{}
	if err := r.Get(ctx, client.ObjectKey{Name: d.class}, class); err != nil {
		return client.IgnoreNotFound(err) // the claim of a class that is gone is reported elsewhere
	}
	if class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion {
		return nil
	}
	if asked.Cmp(d.size) < 0 {
		patch := client.MergeFrom(claim.DeepCopy())
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = d.size
		switch err := r.Patch(ctx, claim, patch); {
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			return waiting(v1alpha1.ReasonInvalid, "%s.size: claim %s cannot be expanded to %s: %v", d.field, name, d.size.String(), err)
		case err != nil:
			return err
		}
		log.FromContext(ctx).Info("a backing volume is being expanded", "claim", name, "from", has.String(), "to", d.size.String())
	}
	why := "the storage of its class has not said so yet"
	for _, x := range claim.Status.Conditions {
		if x.Status == corev1.ConditionTrue && x.Message != "" {
			why = x.Message
		}
	}
	return waiting(v1alpha1.ReasonExpanding, "%s.size: claim %s is being expanded from %s to %s: %s", d.field, name, has.String(), d.size.String(), why)
}
