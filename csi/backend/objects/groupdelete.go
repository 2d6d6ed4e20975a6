package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// DeleteGroupSnapshot implements backend.Backend.
func (b *Backend) DeleteGroupSnapshot(ctx context.Context, id string, snapshots []string) error {
	for {
		g, err := b.readGroup(ctx, id)
		if errors.Is(err, backend.ErrNotFound) {
			return b.deleteOrphans(ctx, id, snapshots)
		}
		if err != nil {
			return err
		}
		if err := sameSnapshots(g, snapshots); err != nil {
			return err
		}
		err = b.destroyGroup(ctx, g)
		if err == nil {
			return b.waitGroupGone(ctx, g)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return apiError("group snapshot", id, err)
		}
		if err := sleep(ctx, conflictPause); err != nil {
			return fmt.Errorf("group snapshot %s: %w: %w", id, backend.ErrTimeout, err)
		}
	}
}

// sameSnapshots checks that a request names the snapshots of the group, in any order.
func sameSnapshots(g *v1alpha1.LogicalUnitGroupSnapshot, snapshots []string) error {
	var have []string
	for _, m := range g.Spec.Members {
		have = append(have, m.Snapshot)
	}
	slices.Sort(have)
	if !slices.Equal(have, slices.Sorted(slices.Values(snapshots))) {
		return fmt.Errorf("%w: the snapshots of group snapshot %q are %s, not %s", backend.ErrInvalid, g.Name, strings.Join(have, ", "), strings.Join(snapshots, ", "))
	}
	return nil
}

// deleteOrphans deletes the snapshots of a group whose object is gone. The operator removes the
// snapshots first, so there are some only if the objects were lost and recreated from the disks,
// which know snapshots but not groups. Without this they would stay for ever: the object is not
// there, and none of them can be deleted alone.
func (b *Backend) deleteOrphans(ctx context.Context, id string, snapshots []string) error {
	var list v1alpha1.LogicalUnitSnapshotList
	if err := b.c.List(ctx, &list); err != nil {
		return apiError("snapshots", "", err)
	}
	orphans := slices.DeleteFunc(list.Items, func(s v1alpha1.LogicalUnitSnapshot) bool { return id == "" || s.Spec.Group != id })
	for i := range orphans {
		if name := orphans[i].Name; !slices.Contains(snapshots, name) {
			return fmt.Errorf("%w: group snapshot %q has the snapshot %s, which is not named", backend.ErrInvalid, id, name)
		}
	}
	for i := range orphans {
		if err := b.deleteSnapshot(ctx, orphans[i].Name, id); err != nil {
			return err
		}
	}
	return nil
}

// destroyGroup sets spec.destroy with an optimistic lock.
func (b *Backend) destroyGroup(ctx context.Context, g *v1alpha1.LogicalUnitGroupSnapshot) error {
	if g.Spec.Destroy {
		return nil
	}
	next := g.DeepCopy()
	next.Spec.Destroy = true
	if err := b.c.Patch(ctx, next, client.MergeFromWithOptions(g, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.DriverManager)); err != nil {
		return err
	}
	*g = *next
	return nil
}

// removeFailedGroup removes an object that was never taken; if that fails, the repeated call finds
// it. The optimistic lock prevents the removal if the operator has published it meanwhile.
func (b *Backend) removeFailedGroup(ctx context.Context, g *v1alpha1.LogicalUnitGroupSnapshot) {
	if groupTaken(g) {
		return
	}
	if c := failed(g.Status.Conditions, v1alpha1.ConditionReady, g.Generation); c != nil && c.Reason == v1alpha1.ReasonMissing {
		return // it was taken once: what is left of it is for a person to judge
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	if b.destroyGroup(ctx, g) == nil {
		_ = b.c.Delete(ctx, g, client.Preconditions{UID: &g.UID})
	}
}

// waitGroupGone deletes an object with spec.destroy, and waits until the operator has removed all
// its snapshots, and the object is gone.
func (b *Backend) waitGroupGone(ctx context.Context, g *v1alpha1.LogicalUnitGroupSnapshot) error {
	// A process may have crashed between setting spec.destroy and the deletion.
	if g.DeletionTimestamp.IsZero() {
		if err := client.IgnoreNotFound(b.c.Delete(ctx, g, client.Preconditions{UID: &g.UID})); err != nil && !apierrors.IsConflict(err) {
			return apiError("group snapshot", g.Name, err)
		}
	}
	err := waitGroup(ctx, b, "delete group snapshot "+g.Name, g, func(*v1alpha1.LogicalUnitGroupSnapshot) (bool, error) { return false, nil })
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}
