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
	"github.com/gemel-storage/gemel/internal/stripe"
)

// volume converts a LogicalUnit. Hosts are those of the spec and those still mapped.
func volume(lu *v1alpha1.LogicalUnit) backend.Volume {
	v := backend.Volume{ID: lu.Name, Name: lu.Name, Cluster: lu.Spec.Cluster, Labels: map[string]string{}}
	v.Mutable = current(lu)
	if lu.Status.Size != nil {
		v.Size = lu.Status.Size.Value()
	}
	if s := lu.Spec.Source; s != nil {
		v.SourceVolume, v.SourceSnapshot = s.LogicalUnit, s.Snapshot
	}
	v.Pool = poolOf(lu)
	for _, t := range lu.Spec.AccessibleFrom {
		v.AccessibleFrom = append(v.AccessibleFrom, t.Labels())
	}
	v.Pairs = lu.Spec.Placement.Pairs()
	v.Layout = layoutOf(lu.Spec.Striped)
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

// layoutOf is the layout of a volume; Count 0: one LUN.
func layoutOf(s *v1alpha1.Striping) stripe.Layout {
	if s == nil {
		return stripe.Layout{}
	}
	return stripe.Layout{Count: int(s.LUNs), Size: int64(s.StripeBytes)}
}

// poolOf a LUN; empty before its placement, and for LUNs of releases without pools.
func poolOf(lu *v1alpha1.LogicalUnit) string {
	if lu.Spec.Placement != nil && lu.Spec.Placement.Pool != "" {
		return lu.Spec.Placement.Pool
	}
	return lu.Spec.Pool
}

// writes reports whether a host may write, or still can.
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

// unitOf returns the object of a new volume.
func unitOf(req backend.CreateVolume) *v1alpha1.LogicalUnit {
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: req.ID, Labels: map[string]string{v1alpha1.LabelCluster: req.Cluster}},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: req.Cluster, Pool: req.Pool, Size: *resource.NewQuantity(req.Size, resource.BinarySI), PreferredNode: req.PreferredNode, PinnedNode: specPin(req.PinnedNode), WriteCache: req.WriteCache, Tier: specPin(req.Tier),
			Shared: req.Labels[v1alpha1.DiskLabelAccess] == v1alpha1.AccessMulti,
			Volume: &v1alpha1.VolumeInfo{Name: req.Name, PVC: req.Labels[v1alpha1.DiskLabelPVC], Namespace: req.Labels[v1alpha1.DiskLabelNamespace], FSType: req.Labels[v1alpha1.DiskLabelFSType]}}}
	if lu.Spec.Volume.FSType == v1alpha1.FSTypeBlock {
		lu.Spec.Volume.FSType = ""
	}
	if l := req.Layout; l.Count > 0 {
		lu.Spec.Striped = &v1alpha1.Striping{LUNs: int32(l.Count), StripeBytes: int32(l.Size)}
		if req.OverPairs {
			lu.Spec.Spread = v1alpha1.LegsOverPairs
		}
	}
	lu.Spec.Sessions = int32(req.Sessions)
	if req.SourceVolume != "" || req.SourceSnapshot != "" {
		lu.Spec.Source = &v1alpha1.Source{LogicalUnit: req.SourceVolume, Snapshot: req.SourceSnapshot}
	}
	return lu
}

// CreateVolume implements backend.Backend. An object that fails is removed, unless its LUN was
// created after all: to the caller a final error means that nothing was created, so that it would
// never be deleted.
func (b *Backend) CreateVolume(ctx context.Context, req backend.CreateVolume) (backend.Volume, error) {
	pool, err := b.checkSource(ctx, req)
	if err != nil {
		return backend.Volume{}, err
	}
	claim, err := b.claim(ctx, req)
	if err != nil {
		return backend.Volume{}, err
	}
	want := unitOf(req)
	want.Spec.Consumer = b.consumer(req, claim)
	if err := b.restrictUnit(ctx, want, req, pool, claim); err != nil {
		return backend.Volume{}, err
	}
	for {
		lu, err := b.ensure(ctx, want)
		if err != nil {
			return backend.Volume{}, err
		}
		lu, err = b.waitUnit(ctx, "create volume "+req.ID, lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
			made := now.Annotations[v1alpha1.AnnotationMade] == "true" && now.Status.Size != nil && now.Status.Size.Value() >= req.Size
			return made, verdict("create volume "+req.ID, failed(now.Status.Conditions, v1alpha1.ConditionReady, now.Generation))
		})
		switch {
		case errors.Is(err, errGone):
			continue // an earlier object was being deleted
		case errors.Is(err, backend.ErrTimeout):
			return backend.Volume{}, err
		case err != nil:
			b.removeFailed(context.WithoutCancel(ctx), lu)
			return backend.Volume{}, err
		}
		return volume(lu), nil
	}
}

// ensure creates the object, or returns the existing one. It waits for one that is being deleted.
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
		if err := b.waitGone(ctx, old); err != nil {
			return nil, err
		}
	}
}

// sameSpec ignores the consumer and the workers that the volume is for: a claim whose pod was
// scheduled again names another worker, and a pool may have been changed.
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
	case !equal(old.Spec.Striped, want.Spec.Striped):
		differs = "number of LUNs or size of stripes"
	case old.Spec.Spread != want.Spec.Spread:
		differs = "spread"
	case !equal(old.Spec.Source, want.Spec.Source):
		differs = "source"
	case old.Spec.Shared != want.Spec.Shared || old.Spec.Volume.FSType != want.Spec.Volume.FSType:
		differs = "kind of access"
	default:
		return nil
	}
	return fmt.Errorf("%w: volume %q has another %s", backend.ErrExists, want.Spec.Volume.Name, differs)
}

// checkSource checks the source of a copy, and returns the pool of the new volume; empty: the first
// one. A copy is in the pool of its source, whatever is requested.
func (b *Backend) checkSource(ctx context.Context, req backend.CreateVolume) (pool string, err error) {
	var size int64
	var cluster string
	var layout *v1alpha1.Striping
	pool, several := req.Pool, false
	switch {
	case req.SourceSnapshot != "":
		s, err := b.takenSnapshot(ctx, req.SourceSnapshot)
		if err != nil {
			return "", err
		}
		size, cluster, layout = s.Status.Size.Value(), s.Spec.Cluster, s.Spec.Striped
		if s.Spec.Placement != nil {
			pool, several = s.Spec.Placement.Pool, len(s.Spec.Placement.LegPairs) > 0
		}
	case req.SourceVolume != "":
		lu, err := b.ready(ctx, req.SourceVolume)
		if err != nil {
			return "", err
		}
		size, cluster, pool, layout = lu.Status.Size.Value(), lu.Spec.Cluster, poolOf(lu), lu.Spec.Striped
		several = len(lu.Spec.Placement.Pairs()) > 1
	default:
		return pool, nil
	}
	switch {
	case cluster != req.Cluster:
		return "", fmt.Errorf("%w: cluster %s: the source is in cluster %s, and a copy must be in the same cluster", backend.ErrInvalid, req.Cluster, cluster)
	case layoutOf(layout) != req.Layout:
		return "", fmt.Errorf("%w: parameters: %s and %s make %s, and the source has %s: use a StorageClass that makes the same", backend.ErrInvalid, v1alpha1.ParamLUNs, v1alpha1.ParamStripe, req.Layout, layoutOf(layout))
	case req.OverPairs && !several:
		return "", fmt.Errorf("%w: parameters: %s is %s, and all LUNs of the source are on one pair: a copy is where its source is: use a StorageClass without %s", backend.ErrInvalid, v1alpha1.ParamSpread, v1alpha1.OverPairs, v1alpha1.ParamSpread)
	case size > req.Size:
		return "", fmt.Errorf("%w: size %d is below the source's %d", backend.ErrInvalid, req.Size, size)
	}
	return pool, nil
}

// removeFailed removes an object whose LUN was never created; if that fails, the repeated call
// finds it. The optimistic lock prevents the removal if anything has changed since the failure was
// read.
func (b *Backend) removeFailed(ctx context.Context, lu *v1alpha1.LogicalUnit) {
	if lu.Annotations[v1alpha1.AnnotationMade] == "true" || len(hosts(lu)) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	next := lu.DeepCopy()
	next.Spec.Destroy = true
	if b.c.Patch(ctx, next, client.MergeFromWithOptions(lu, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.DriverManager)) == nil {
		_ = b.remove(ctx, next)
	}
}

// cleanupLimit bounds the cleanup after a failed call.
const cleanupLimit = 5 * time.Second

// remove deletes the object with this UID.
func (b *Backend) remove(ctx context.Context, lu *v1alpha1.LogicalUnit) error {
	return client.IgnoreNotFound(b.c.Delete(ctx, lu, client.Preconditions{UID: &lu.UID}))
}

// waitGone deletes an object with spec.destroy, and waits until object and data are gone.
func (b *Backend) waitGone(ctx context.Context, lu *v1alpha1.LogicalUnit) error {
	// A process may have crashed between setting spec.destroy and the deletion.
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

// DeleteVolume implements backend.Backend. spec.destroy is set with an optimistic lock; from then
// on the API rejects new hosts.
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
	return b.waitGone(ctx, lu)
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
	lu, err := b.ready(ctx, id)
	if err != nil {
		return backend.Volume{}, err
	}
	// A size of the spec stays, so one that is refused is best never written.
	if err := b.promises(ctx, lu, size); err != nil {
		return backend.Volume{}, err
	}
	lu, err = b.change(ctx, id, func(lu *v1alpha1.LogicalUnit) error {
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
