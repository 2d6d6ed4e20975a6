package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// volume is a LogicalUnit in the driver's terms. Hosts are those that are to reach it and those that still may.
func volume(lu *v1alpha1.LogicalUnit) backend.Volume {
	v := backend.Volume{ID: lu.Name, Name: lu.Name, Cluster: lu.Spec.Cluster, Labels: map[string]string{}}
	v.Mutable = backend.Mutable{PreferredNode: lu.Status.PreferredNode, WriteCache: lu.Status.WriteCache}
	if lu.Status.Size != nil {
		v.Size = lu.Status.Size.Value()
	}
	if s := lu.Spec.Source; s != nil {
		v.SourceVolume, v.SourceSnapshot = s.LogicalUnit, s.Snapshot
	}
	v.Pool = poolOf(lu)
	if lu.Spec.Placement != nil {
		v.Pair = lu.Spec.Placement.Pair
	}
	if i := lu.Spec.Volume; i != nil {
		v.Name = i.Name
		for k, s := range map[string]string{v1alpha1.DiskLabelName: i.Name, v1alpha1.DiskLabelPV: i.Name, v1alpha1.DiskLabelPVC: i.PVC, v1alpha1.DiskLabelNamespace: i.Namespace} {
			if s != "" {
				v.Labels[k] = s
			}
		}
		v.Labels[v1alpha1.DiskLabelFSType], v.Labels[v1alpha1.DiskLabelAccess] = i.FSType, v1alpha1.AccessSingle
		if i.FSType == "" {
			v.Labels[v1alpha1.DiskLabelFSType] = v1alpha1.FSTypeBlock
		}
		if lu.Spec.Shared {
			v.Labels[v1alpha1.DiskLabelAccess] = v1alpha1.AccessMulti
		}
	}
	v.Hosts = slices.Sorted(maps.Keys(hosts(lu)))
	for _, h := range v.Hosts {
		if writes(lu, h) {
			v.Writers = append(v.Writers, h)
		}
	}
	return v
}

// poolOf a LUN; empty as long as it has no place, and of one that was made before there were several.
func poolOf(lu *v1alpha1.LogicalUnit) string {
	if lu.Spec.Placement != nil && lu.Spec.Placement.Pool != "" {
		return lu.Spec.Placement.Pool
	}
	return lu.Spec.Pool
}

// writes tells whether a host may write, or still may.
func writes(lu *v1alpha1.LogicalUnit, iqn string) bool {
	return slices.ContainsFunc(lu.Spec.Hosts, func(h v1alpha1.HostAccess) bool { return strings.ToLower(h.IQN) == iqn && h.Writes() }) ||
		slices.ContainsFunc(lu.Status.Hosts, func(h v1alpha1.HostMapping) bool { return h.IQN == iqn && !h.ReadOnly })
}

// hosts are those of the spec and those of the status.
func hosts(lu *v1alpha1.LogicalUnit) map[string]bool {
	m := map[string]bool{}
	for _, h := range lu.Spec.Hosts {
		m[strings.ToLower(h.IQN)] = true
	}
	for _, h := range lu.Status.Hosts {
		m[h.IQN] = true
	}
	return m
}

// unitOf is the object of a new volume.
func unitOf(q backend.CreateVolume) *v1alpha1.LogicalUnit {
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: q.ID, Labels: map[string]string{v1alpha1.LabelCluster: q.Cluster}},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: q.Cluster, Pool: q.Pool, Size: *resource.NewQuantity(q.Size, resource.BinarySI), PreferredNode: q.PreferredNode, WriteCache: q.WriteCache,
			Shared: q.Labels[v1alpha1.DiskLabelAccess] == v1alpha1.AccessMulti,
			Volume: &v1alpha1.VolumeInfo{Name: q.Name, PVC: q.Labels[v1alpha1.DiskLabelPVC], Namespace: q.Labels[v1alpha1.DiskLabelNamespace], FSType: q.Labels[v1alpha1.DiskLabelFSType]}}}
	if lu.Spec.Volume.FSType == v1alpha1.FSTypeBlock {
		lu.Spec.Volume.FSType = ""
	}
	if q.SourceVolume != "" || q.SourceSnapshot != "" {
		lu.Spec.Source = &v1alpha1.Source{LogicalUnit: q.SourceVolume, Snapshot: q.SourceSnapshot}
	}
	return lu
}

// CreateVolume implements backend.Backend. An object that cannot be carried out is taken back, unless it was made after all: to
// the caller a final error means that nothing was made, and nobody would delete it.
func (b *Backend) CreateVolume(ctx context.Context, q backend.CreateVolume) (backend.Volume, error) {
	if err := b.checkSource(ctx, q); err != nil {
		return backend.Volume{}, err
	}
	for {
		lu, err := b.ensure(ctx, unitOf(q))
		if err != nil {
			return backend.Volume{}, err
		}
		lu, err = b.waitUnit(ctx, "create volume "+q.ID, lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
			made := now.Annotations[v1alpha1.AnnotationMade] == "true" && now.Status.Size != nil && now.Status.Size.Value() >= q.Size
			return made, verdict("create volume "+q.ID, failed(now.Status.Conditions, v1alpha1.ConditionReady, now.Generation))
		})
		switch {
		case errors.Is(err, errGone):
			continue // an earlier one was being deleted
		case errors.Is(err, backend.ErrTimeout):
			return backend.Volume{}, err
		case err != nil:
			b.takeBack(context.WithoutCancel(ctx), lu)
			return backend.Volume{}, err
		}
		return volume(lu), nil
	}
}

// ensure makes the object, or finds the one that an earlier call made. One that is being destroyed is waited for.
func (b *Backend) ensure(ctx context.Context, want *v1alpha1.LogicalUnit) (*v1alpha1.LogicalUnit, error) {
	for {
		lu := want.DeepCopy()
		err := b.c.Create(ctx, lu, client.FieldOwner(v1alpha1.DriverManager))
		if err == nil {
			return lu, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, apiError("volume", want.Name, err)
		}
		old, err := b.unit(ctx, want.Name)
		if errors.Is(err, backend.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !old.Spec.Destroy {
			return old, sameSpec(old, want)
		}
		if err := b.gone(ctx, old); err != nil {
			return nil, err
		}
	}
}

func sameSpec(old, want *v1alpha1.LogicalUnit) error {
	differs := ""
	switch {
	case old.Spec.Volume == nil || old.Spec.Volume.Name != want.Spec.Volume.Name:
		differs = "name"
	case old.Spec.Cluster != want.Spec.Cluster:
		differs = "cluster " + old.Spec.Cluster
	case want.Spec.Pool != "" && poolOf(old) != "" && poolOf(old) != want.Spec.Pool:
		differs = "pool " + poolOf(old)
	case old.Spec.Size.Cmp(want.Spec.Size) != 0:
		differs = "size " + old.Spec.Size.String()
	case !equal(old.Spec.Source, want.Spec.Source):
		differs = "source"
	case old.Spec.Shared != want.Spec.Shared || old.Spec.Volume.FSType != want.Spec.Volume.FSType:
		differs = "kind of access"
	default:
		return nil
	}
	return fmt.Errorf("%w: volume %q has another %s", backend.ErrExists, want.Spec.Volume.Name, differs)
}

func (b *Backend) checkSource(ctx context.Context, q backend.CreateVolume) error {
	var size int64
	cluster := q.Cluster
	switch {
	case q.SourceSnapshot != "":
		s, err := b.takenSnapshot(ctx, q.SourceSnapshot)
		if err != nil {
			return err
		}
		size, cluster = s.Status.Size.Value(), s.Spec.Cluster
	case q.SourceVolume != "":
		lu, err := b.ready(ctx, q.SourceVolume)
		if err != nil {
			return err
		}
		size, cluster = lu.Status.Size.Value(), lu.Spec.Cluster
	}
	switch {
	case cluster != q.Cluster:
		return fmt.Errorf("%w: cluster %s: the source is in %s, and copies are made there", backend.ErrInvalid, q.Cluster, cluster)
	case size > q.Size:
		return fmt.Errorf("%w: size %d is below the source's %d", backend.ErrInvalid, q.Size, size)
	}
	return nil
}

// takeBack removes an object whose LUN was never made; if that fails, the repeated call finds it. A call that finds it made meanwhile
// wins: nothing is written if anything has changed since the failure was read.
func (b *Backend) takeBack(ctx context.Context, lu *v1alpha1.LogicalUnit) {
	if lu.Annotations[v1alpha1.AnnotationMade] == "true" || len(hosts(lu)) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, takeBackLimit)
	defer cancel()
	next := lu.DeepCopy()
	next.Spec.Destroy = true
	if b.c.Patch(ctx, next, client.MergeFromWithOptions(lu, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.DriverManager)) == nil {
		_ = b.remove(ctx, next)
	}
}

// takeBackLimit bounds what is done after a call has failed.
const takeBackLimit = 5 * time.Second

// remove asks for the deletion of this very object.
func (b *Backend) remove(ctx context.Context, lu *v1alpha1.LogicalUnit) error {
	return client.IgnoreNotFound(b.c.Delete(ctx, lu, client.Preconditions{UID: &lu.UID}))
}

// gone waits until an object with spec.destroy is gone, and with it the data.
func (b *Backend) gone(ctx context.Context, lu *v1alpha1.LogicalUnit) error {
	// It may be that the process that set destroy died before the deletion.
	if lu.DeletionTimestamp.IsZero() {
		if err := b.remove(ctx, lu); err != nil && !apierrors.IsConflict(err) {
			return apiError("volume", lu.Name, err)
		}
	}
	_, err := b.waitUnit(ctx, "delete volume "+lu.Name, lu, func(now *v1alpha1.LogicalUnit) (bool, error) { return false, nil })
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// DeleteVolume implements backend.Backend. spec.destroy is set against whatever else is written at the same time, and from then on
// the API admits no host.
func (b *Backend) DeleteVolume(ctx context.Context, id string) error {
	lu, err := b.change(ctx, id, func(lu *v1alpha1.LogicalUnit) error {
		if h := hosts(lu); len(h) > 0 {
			return fmt.Errorf("%w: volume %s is published to %s", backend.ErrInUse, id, strings.Join(slices.Sorted(maps.Keys(h)), ", "))
		}
		lu.Spec.Destroy = true
		return nil
	})
	if errors.Is(err, backend.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return b.gone(ctx, lu)
}

// GetVolume implements backend.Backend.
func (b *Backend) GetVolume(ctx context.Context, id string) (backend.Volume, error) {
	lu, err := b.ready(ctx, id)
	if err != nil {
		return backend.Volume{}, err
	}
	return volume(lu), nil
}

// ExpandVolume implements backend.Backend.
func (b *Backend) ExpandVolume(ctx context.Context, id string, size int64) (backend.Volume, error) {
	if _, err := b.ready(ctx, id); err != nil {
		return backend.Volume{}, err
	}
	lu, err := b.change(ctx, id, func(lu *v1alpha1.LogicalUnit) error {
		if lu.Spec.Size.Value() < size {
			lu.Spec.Size = *resource.NewQuantity(size, resource.BinarySI)
		}
		return nil
	})
	if err != nil {
		return backend.Volume{}, err
	}
	lu, err = b.waitUnit(ctx, "expand volume "+id, lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
		if now.Status.Size != nil && now.Status.Size.Value() >= size {
			return true, nil
		}
		return false, verdict("expand volume "+id, failed(now.Status.Conditions, v1alpha1.ConditionReady, now.Generation))
	})
	if errors.Is(err, errGone) {
		return backend.Volume{}, notFound("volume", id)
	}
	if err != nil {
		return backend.Volume{}, err
	}
	return volume(lu), nil
}
