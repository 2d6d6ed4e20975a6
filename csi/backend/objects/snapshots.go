package objects

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

func snapshot(s *v1alpha1.LogicalUnitSnapshot) backend.Snapshot {
	out := backend.Snapshot{ID: s.Name, Name: s.Spec.Name, SourceVolume: s.Spec.Source, Size: s.Status.Size.Value(), Created: s.Status.TakenAt.Time}
	if !alone(s) {
		out.Group = s.Spec.Group
	}
	return out
}

// alone reports whether a snapshot is no part of what the caller knows as a group snapshot: one of
// a striped volume has a LogicalUnitGroupSnapshot of its own, with its name.
func alone(s *v1alpha1.LogicalUnitSnapshot) bool { return s.Spec.Group == "" || s.Spec.Group == s.Name }

func (b *Backend) readSnapshot(ctx context.Context, id string) (*v1alpha1.LogicalUnitSnapshot, error) {
	if !validName.MatchString(id) {
		return nil, notFound("snapshot", id)
	}
	var s v1alpha1.LogicalUnitSnapshot
	if err := b.c.Get(ctx, client.ObjectKey{Name: id}, &s); err != nil {
		return nil, apiError("snapshot", id, err)
	}
	if s.Labels[v1alpha1.LabelClone] != "" {
		return nil, fmt.Errorf("%w: %s is what a clone is made from, and no snapshot that was asked for", backend.ErrNotFound, id)
	}
	if s.Spec.Leg != nil { // as in unit
		return nil, fmt.Errorf("%w: %s is a part of the snapshot %s of a striped volume, and no snapshot by itself", backend.ErrNotFound, id, s.Spec.Leg.Of)
	}
	return &s, nil
}

// taken reports whether the snapshot exists on the disks. One of a group snapshot can be used when
// the operator has published it: until then an attempt to take the group may still be given up.
func taken(s *v1alpha1.LogicalUnitSnapshot) bool {
	return s.Annotations[v1alpha1.AnnotationMade] == "true" || s.Spec.Group != "" && meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady)
}

// takenSnapshot reads a snapshot that exists and is not being deleted.
func (b *Backend) takenSnapshot(ctx context.Context, id string) (*v1alpha1.LogicalUnitSnapshot, error) {
	s, err := b.readSnapshot(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case s.Spec.Destroy:
		return nil, fmt.Errorf("%w: snapshot %q is being deleted", backend.ErrNotFound, id)
	case !taken(s):
		return nil, fmt.Errorf("%w: snapshot %q is not taken yet", backend.ErrNotFound, id)
	case s.Status.Size == nil || s.Status.TakenAt == nil:
		return nil, fmt.Errorf("%w: the LogicalUnitSnapshot %q has no status yet: retry", backend.ErrUnavailable, id)
	}
	return s, nil
}

// GetSnapshot implements backend.Backend.
func (b *Backend) GetSnapshot(ctx context.Context, id string) (backend.Snapshot, error) {
	s, err := b.takenSnapshot(ctx, id)
	if err != nil {
		return backend.Snapshot{}, err
	}
	return snapshot(s), nil
}

// CreateSnapshot implements backend.Backend. As for volumes, an object that fails is removed.
func (b *Backend) CreateSnapshot(ctx context.Context, id, name, source string) (backend.Snapshot, error) {
	switch striped, err := b.ofStriped(ctx, id, source); {
	case err != nil:
		return backend.Snapshot{}, err
	case striped:
		g, err := b.createGroup(ctx, id, name, []v1alpha1.GroupSnapshotMember{{Source: source, Snapshot: id}})
		if err != nil {
			return backend.Snapshot{}, err
		}
		return g.Snapshots[0], nil
	}
	for {
		s, err := b.ensureSnapshot(ctx, id, name, source)
		if err != nil {
			return backend.Snapshot{}, err
		}
		var seen *v1alpha1.LogicalUnitSnapshot
		err = waitSnapshot(ctx, b, "create snapshot "+id, s, func(now *v1alpha1.LogicalUnitSnapshot) (bool, error) {
			seen = now
			return taken(now) && now.Status.Size != nil && now.Status.TakenAt != nil, verdict("create snapshot "+id, failed(now.Status.Conditions, v1alpha1.ConditionReady, now.Generation))
		})
		switch {
		case errors.Is(err, errGone):
			continue // an earlier object was being deleted
		case errors.Is(err, backend.ErrTimeout):
			return backend.Snapshot{}, err
		case err != nil:
			b.removeFailedSnapshot(context.WithoutCancel(ctx), seen)
			return backend.Snapshot{}, err
		}
		return snapshot(seen), nil
	}
}

// ofStriped reports whether a snapshot is, or is to be, of a striped volume: the snapshots of its
// LUNs are taken as a group of their own, whose object has the name of the snapshot. Only a new
// snapshot needs the source.
func (b *Backend) ofStriped(ctx context.Context, id, source string) (bool, error) {
	s, err := b.readSnapshot(ctx, id)
	if err == nil {
		return s.Spec.Group == id, nil
	}
	if !errors.Is(err, backend.ErrNotFound) {
		return false, err
	}
	if _, err := b.readGroup(ctx, id); !errors.Is(err, backend.ErrNotFound) {
		return err == nil, err
	}
	lu, err := b.ready(ctx, source)
	return err == nil && lu.Spec.Striped != nil, err
}

// waitSnapshot calls wait for a LogicalUnitSnapshot.
func waitSnapshot(ctx context.Context, b *Backend, what string, s *v1alpha1.LogicalUnitSnapshot, done func(*v1alpha1.LogicalUnitSnapshot) (bool, error)) error {
	return wait(ctx, b, what, s, func() *v1alpha1.LogicalUnitSnapshot { return &v1alpha1.LogicalUnitSnapshot{} }, &v1alpha1.LogicalUnitSnapshotList{}, done,
		func(now *v1alpha1.LogicalUnitSnapshot) error {
			if now.Spec.Placement == nil {
				return nil
			}
			return b.pairsDown(ctx, what, []string{now.Spec.Placement.Pair})
		})
}

// ensureSnapshot creates the object, or returns the existing one. Only the creation needs the
// source.
func (b *Backend) ensureSnapshot(ctx context.Context, id, name, source string) (*v1alpha1.LogicalUnitSnapshot, error) {
	for {
		old, err := b.readSnapshot(ctx, id)
		switch {
		case err == nil && old.Spec.Destroy:
			if err := b.waitSnapshotGone(ctx, old); err != nil {
				return nil, err
			}
			continue
		case err == nil && (old.Spec.Source != source || old.Spec.Name != name):
			return nil, fmt.Errorf("%w: snapshot %q exists, of volume %s", backend.ErrExists, name, old.Spec.Source)
		case err == nil:
			return old, nil
		case !errors.Is(err, backend.ErrNotFound):
			return nil, err
		}
		lu, err := b.ready(ctx, source)
		if err != nil {
			return nil, err
		}
		s := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{v1alpha1.LabelCluster: lu.Spec.Cluster}},
			Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: lu.Spec.Cluster, Source: source, Name: name}}
		err = b.c.Create(ctx, s, client.FieldOwner(v1alpha1.DriverManager))
		switch {
		case err == nil:
			return s, nil
		case !apierrors.IsAlreadyExists(err):
			return nil, apiError("snapshot", id, err)
		}
	}
}

// destroySnapshot sets spec.destroy with an optimistic lock.
func (b *Backend) destroySnapshot(ctx context.Context, s *v1alpha1.LogicalUnitSnapshot) error {
	if s.Spec.Destroy {
		return nil
	}
	next := s.DeepCopy()
	next.Spec.Destroy = true
	if err := b.c.Patch(ctx, next, client.MergeFromWithOptions(s, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.DriverManager)); err != nil {
		return err
	}
	*s = *next
	return nil
}

// removeFailedSnapshot removes an object whose snapshot was never taken; if that fails, the
// repeated call finds it.
func (b *Backend) removeFailedSnapshot(ctx context.Context, s *v1alpha1.LogicalUnitSnapshot) {
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	if s.Annotations[v1alpha1.AnnotationMade] != "true" && b.destroySnapshot(ctx, s) == nil {
		_ = b.c.Delete(ctx, s, client.Preconditions{UID: &s.UID})
	}
}

// waitSnapshotGone deletes an object with spec.destroy, and waits until object and data are gone.
func (b *Backend) waitSnapshotGone(ctx context.Context, s *v1alpha1.LogicalUnitSnapshot) error {
	if s.DeletionTimestamp.IsZero() {
		if err := client.IgnoreNotFound(b.c.Delete(ctx, s, client.Preconditions{UID: &s.UID})); err != nil && !apierrors.IsConflict(err) {
			return apiError("snapshot", s.Name, err)
		}
	}
	err := waitSnapshot(ctx, b, "delete snapshot "+s.Name, s, func(*v1alpha1.LogicalUnitSnapshot) (bool, error) { return false, nil })
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// DeleteSnapshot implements backend.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) error {
	g, err := b.readGroup(ctx, id)
	switch {
	case err == nil && g.OfVolume():
		return b.DeleteGroupSnapshot(ctx, id, []string{id})
	case err != nil && !errors.Is(err, backend.ErrNotFound):
		return err
	}
	return b.deleteSnapshot(ctx, id, "")
}

// deleteSnapshot deletes a snapshot of a group snapshot, or an independent one if group is empty.
func (b *Backend) deleteSnapshot(ctx context.Context, id, group string) error {
	for {
		s, err := b.readSnapshot(ctx, id)
		if errors.Is(err, backend.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.Spec.Group != group && !(group == "" && alone(s)) {
			return fmt.Errorf("snapshot %q: %w: it is deleted with the others of %q: delete that", id, backend.ErrInGroup, s.Spec.Group)
		}
		err = b.destroySnapshot(ctx, s)
		if err == nil {
			return b.waitSnapshotGone(ctx, s)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return apiError("snapshot", id, err)
		}
		if err := sleep(ctx, conflictPause); err != nil {
			return fmt.Errorf("snapshot %s: %w: %w", id, backend.ErrTimeout, err)
		}
	}
}
