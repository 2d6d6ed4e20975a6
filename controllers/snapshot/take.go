package snapshot

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

type service = targetv1.TargetServiceClient

// place records, once, the pair and the LUN of the snapshot, before the first request to the pair.
// From then on the source's object is not needed. The UUID is that of the object.
func (p *pass) place(ctx context.Context) error {
	switch {
	case p.o.Spec.Placement != nil:
		return nil
	case p.deleted():
		return object.RemoveFinalizer(ctx, p, &p.o) // no snapshot was taken; if the cache is stale, the update fails with a conflict
	case p.o.Spec.Destroy:
		return notTaken()
	}
	var lu v1alpha1.LogicalUnit
	err := p.Live.Get(ctx, client.ObjectKey{Name: p.o.Spec.Source}, &lu)
	switch {
	case apierrors.IsNotFound(err):
		return finding.New(v1alpha1.ReasonNoSource, "LogicalUnit %s, the source of this snapshot, does not exist", p.o.Spec.Source)
	case err != nil:
		return fmt.Errorf("LogicalUnit %s: %w", p.o.Spec.Source, err)
	case lu.Spec.Cluster != p.o.Spec.Cluster:
		return finding.New(v1alpha1.ReasonInvalid, "spec.cluster is %s: the source is in cluster %s", p.o.Spec.Cluster, lu.Spec.Cluster)
	case lu.Spec.Placement == nil || !object.IsMade(&lu):
		return finding.Wait(v1alpha1.ReasonProgressing, "the source %s is being created", p.o.Spec.Source)
	}
	if err := p.checkSource(ctx, &lu); err != nil {
		return err
	}
	return object.Patch(ctx, p, &p.o, "placement", func(o *v1alpha1.LogicalUnitSnapshot) {
		controllerutil.AddFinalizer(o, v1alpha1.Finalizer)
		o.Spec.Placement = &v1alpha1.SnapshotPlacement{Pair: lu.Spec.Placement.Pair, Pool: lu.Spec.Placement.Pool, UUID: string(o.UID), SourceUUID: lu.Spec.Placement.UUID}
		if lu.Spec.Striped != nil {
			o.Spec.Striped, o.Spec.Placement.SourceUUID = lu.Spec.Striped.DeepCopy(), ""
			o.Spec.Placement.LegPairs = slices.Clone(lu.Spec.Placement.LegPairs)
		}
	})
}

func notTaken() error {
	return finding.New(v1alpha1.ReasonInvalid, "spec.destroy is set, so no snapshot is taken: delete the object")
}

// connect opens the pair that the snapshot is placed on.
func (p *pass) connect(ctx context.Context) (err error) {
	p.pair, err = p.Pairs.Client(ctx, p.o.Spec.Placement.Pair)
	return finding.Client(p.o.Spec.Placement.Pair, err)
}

// find reads the snapshot from the pair.
func (p *pass) find(ctx context.Context) error {
	if err := p.connect(ctx); err != nil {
		return err
	}
	r, err := rpc(ctx, p, "get the snapshot", service.ListSnapshots, &targetv1.ListSnapshotsRequest{Uuid: p.o.Spec.Placement.UUID})
	if err != nil {
		return err
	}
	if len(r.Snapshots) == 0 {
		return nil
	}
	// A placement that was copied from another object must not give access to that object's data.
	if of := r.Snapshots[0].Labels[LabelObject]; of != "" && of != p.o.Name {
		return finding.New(v1alpha1.ReasonInvalid, "spec.placement.uuid: the snapshot %s belongs to the LogicalUnitSnapshot %s", p.o.Spec.Placement.UUID, of)
	}
	p.snap = r.Snapshots[0]
	return nil
}

// take takes the snapshot unless it exists, and marks the object. Once the object is marked, the
// snapshot is never taken again.
func (p *pass) take(ctx context.Context) error {
	at := p.o.Spec.Placement
	switch {
	case p.snap != nil && p.made():
		return nil
	case p.made():
		return finding.New(v1alpha1.ReasonMissing, "pair %s no longer has snapshot %s: the snapshot is not taken again, because it would be of another point in time; "+
			"delete the VolumeSnapshot", at.Pair, at.UUID)
	case p.snap == nil && p.deleted():
		return object.RemoveFinalizer(ctx, p, &p.o) // deleted before the snapshot was taken: there is no data
	case p.snap == nil && p.o.Spec.Destroy:
		return notTaken()
	case p.snap == nil && p.o.Spec.Group != "":
		return finding.New(v1alpha1.ReasonMissing, "the group snapshot %s was taken, and pair %s does not have snapshot %s of it: the snapshot is not taken by itself, because it would be of another "+
			"point in time; delete the VolumeGroupSnapshot", p.o.Spec.Group, at.Pair, at.UUID)
	case p.snap == nil:
		if err := object.Confirm(ctx, p.Live, p.o); err != nil {
			return err
		}
		snap, err := rpc(ctx, p, "take the snapshot", service.CreateSnapshot, &targetv1.CreateSnapshotRequest{Uuid: at.UUID, Name: p.o.Name,
			SourceLunUuid: at.SourceUUID, Labels: DiskLabels(p.o)})
		if finding.Code(err) == codes.NotFound {
			return finding.New(v1alpha1.ReasonNoSource, "pair %s does not have LUN %s, the source of this snapshot", at.Pair, at.SourceUUID)
		}
		if err != nil {
			return err
		}
		p.snap = snap
	}
	return object.MarkMade(ctx, p, &p.o)
}

// destroy removes the snapshot; volumes restored from it stay.
func (p *pass) destroy(ctx context.Context) error {
	if err := p.heldByGroup(ctx); err != nil {
		return err
	}
	if p.o.Spec.Placement == nil {
		return object.RemoveFinalizer(ctx, p, &p.o)
	}
	if p.o.Spec.Striped != nil {
		if err := p.destroyLegs(ctx); err != nil {
			return err
		}
		return object.RemoveFinalizer(ctx, p, &p.o)
	}
	if err := p.find(ctx); err != nil {
		return err
	}
	if err := object.Confirm(ctx, p.Live, p.o); err != nil {
		return err
	}
	if _, err := rpc(ctx, p, "destroy the snapshot", service.DeleteSnapshot, &targetv1.DeleteSnapshotRequest{Uuid: p.o.Spec.Placement.UUID}); err != nil {
		return err
	}
	return object.RemoveFinalizer(ctx, p, &p.o)
}
