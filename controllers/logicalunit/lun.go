package logicalunit

import (
	"cmp"
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

type (
	callOption = grpc.CallOption
	service    = targetv1.TargetServiceClient
)

// find reads the LUN and its mappings from the pair.
func (p *pass) find(ctx context.Context) error {
	if err := p.connect(ctx); err != nil {
		return err
	}
	lun, err := rpc(ctx, p, "get the LUN", service.GetLUN, &targetv1.GetLUNRequest{Uuid: p.lu.Spec.Placement.UUID})
	if err != nil && finding.Code(err) != codes.NotFound {
		return err
	}
	if err == nil {
		// A placement that was copied from another object must not give access to that object's
		// data.
		if of := lun.Labels[LabelObject]; of != "" && of != p.lu.Name {
			return finding.New(v1alpha1.ReasonInvalid, "spec.placement.uuid: the LUN %s belongs to the LogicalUnit %s", lun.Uuid, of)
		}
		p.lun = lun
	}
	p.readMappings()
	return nil
}

// ensureLUN creates the LUN unless it exists, and marks the object. A crash between the two is
// harmless: the next reconcile finds the LUN. Once the object is marked, the LUN is never created
// again.
func (p *pass) ensureLUN(ctx context.Context) error {
	switch {
	case p.lun != nil && p.made():
		return nil
	case p.made():
		return finding.New(v1alpha1.ReasonMissing, "pair %s no longer has LUN %s: the LUN is not created again, because an empty LUN would hide the loss; "+
			"restore the volume from a snapshot or a backup, or delete the PersistentVolumeClaim", p.lu.Spec.Placement.Pair, p.lu.Spec.Placement.UUID)
	case p.lun == nil && p.deleted():
		return object.RemoveFinalizer(ctx, p, &p.lu) // deleted before the LUN was created: there is no data
	case p.lun == nil && p.lu.Spec.Destroy:
		return finding.New(v1alpha1.ReasonInvalid, "spec.destroy is set, so no LUN is created: delete the object")
	case p.lun == nil:
		if err := p.create(ctx); err != nil {
			return err
		}
	}
	return object.MarkMade(ctx, p, &p.lu)
}

func (p *pass) create(ctx context.Context) error {
	s, err := p.source(ctx)
	if err != nil {
		return err
	}
	at := p.lu.Spec.Placement
	volume := ""
	if p.lu.Spec.Source == nil { // a copy is on the volume of its source
		if volume, err = p.volume(ctx); err != nil {
			return err
		}
	}
	// A pin is set when the LUN exists: a pair that knows no pins creates the LUN at that node.
	lun, err := change(ctx, p, "create the LUN", service.CreateLUN, &targetv1.CreateLUNRequest{Uuid: at.UUID, Name: p.lu.Name, SizeBytes: uint64(p.lu.Spec.Size.Value()),
		SourceLunUuid: s.lun, SourceSnapshotUuid: s.snapshot, PreferredNode: cmp.Or(p.lu.Spec.PinnedNode, p.lu.Spec.PreferredNode, at.Home), WriteCache: targetv1.ParseWriteCache(p.lu.Spec.WriteCache), Labels: diskLabels(p.lu), Volume: volume})
	switch finding.Code(err) {
	case codes.OK:
	case codes.NotFound: // the source does not exist
		return finding.New(v1alpha1.ReasonNoSource, "pair %s does not have the source of this copy: %v", at.Pair, err)
	default:
		return err
	}
	p.lun = lun
	p.readMappings()
	return nil
}

// expand grows the LUN to the size of the spec.
func (p *pass) expand(ctx context.Context) error {
	size := uint64(p.lu.Spec.Size.Value())
	if p.lun.SizeBytes >= size {
		return nil
	}
	if p.lu.Spec.Leg == nil { // its volume has asked
		if err := p.growable(ctx); err != nil {
			return err
		}
	}
	lun, err := change(ctx, p, "expand the LUN", service.ExpandLUN, &targetv1.ExpandLUNRequest{Uuid: p.lun.Uuid, SizeBytes: size})
	if err != nil {
		return err
	}
	p.lun.SizeBytes = lun.SizeBytes
	return nil
}

// destroy removes the LUN with its data. The API allows no hosts once spec.destroy is set, so all
// hosts that are still mapped are fenced first.
func (p *pass) destroy(ctx context.Context) error {
	if p.lu.Spec.Placement == nil {
		return object.RemoveFinalizer(ctx, p, &p.lu)
	}
	if err := p.find(ctx); err != nil {
		return err
	}
	if err := p.fence(ctx); err != nil {
		return err
	}
	if _, err := change(ctx, p, "destroy the LUN", service.DeleteLUN, &targetv1.DeleteLUNRequest{Uuid: p.lu.Spec.Placement.UUID}); err != nil {
		return err
	}
	return object.RemoveFinalizer(ctx, p, &p.lu)
}
