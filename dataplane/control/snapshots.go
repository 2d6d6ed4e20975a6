package control

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// CreateSnapshot implements targetv1.TargetServiceServer.
func (c *server) CreateSnapshot(ctx context.Context, req *targetv1.CreateSnapshotRequest) (*targetv1.Snapshot, error) {
	if err := errors.Join(checkUUID("uuid", req.Uuid), checkUUID("source_lun_uuid", req.SourceLunUuid), checkLabels(req.Labels), checkName(req.Name)); err != nil {
		return nil, firstStatus(err)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if old := c.snapshot(req.Uuid); old == nil || old.Stage != meta.Ready || old.Source != req.SourceLunUuid || old.Name != req.Name {
		s := meta.Snapshot{UUID: req.Uuid, Name: req.Name, Source: req.SourceLunUuid, Labels: req.Labels, Created: meta.Now()}
		if err := c.n.CreateSnapshot(ctx, s); err != nil {
			return nil, grpcError(err)
		}
	}
	s := c.snapshot(req.Uuid)
	if s == nil || s.Stage != meta.Ready {
		return nil, status.Errorf(codes.Unavailable, "snapshot %s is committed, but this node has not applied it yet: try again", req.Uuid)
	}
	return snapshotProto(s), nil
}

// DeleteSnapshot implements targetv1.TargetServiceServer.
func (c *server) DeleteSnapshot(ctx context.Context, req *targetv1.DeleteSnapshotRequest) (*targetv1.DeleteSnapshotResponse, error) {
	if err := checkUUID("uuid", req.Uuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	_, err := c.n.Change(ctx, &meta.Entry{DeleteSnapshot: &meta.Object{UUID: req.Uuid}})
	return &targetv1.DeleteSnapshotResponse{}, grpcError(err)
}

// ListSnapshots implements targetv1.TargetServiceServer.
func (c *server) ListSnapshots(_ context.Context, req *targetv1.ListSnapshotsRequest) (*targetv1.ListSnapshotsResponse, error) {
	if err := c.member(); err != nil {
		return nil, err
	}
	var sel []*meta.Snapshot
	c.n.ReadMetadata(func(state *meta.State) {
		for _, s := range state.SortedSnapshots() {
			if s.Stage == meta.Ready && (req.SourceLunUuid == "" || s.Source == req.SourceLunUuid) && (req.Uuid == "" || s.UUID == req.Uuid) && (req.Name == "" || s.Name == req.Name) {
				sel = append(sel, s)
			}
		}
	})
	out, next := page(sel, func(s *meta.Snapshot) string { return s.UUID }, req.AfterUuid, req.Limit)
	r := &targetv1.ListSnapshotsResponse{NextAfterUuid: next}
	for _, s := range out {
		r.Snapshots = append(r.Snapshots, snapshotProto(s))
	}
	return r, nil
}

// snapshot finds a snapshot, nil if there is none.
func (c *server) snapshot(id string) (s *meta.Snapshot) {
	c.n.ReadMetadata(func(state *meta.State) { s = state.Snapshots[id] })
	return s
}

func snapshotProto(s *meta.Snapshot) *targetv1.Snapshot {
	return &targetv1.Snapshot{Uuid: s.UUID, Name: s.Name, SourceLunUuid: s.Source, SizeBytes: uint64(s.Size),
		Created: timestamppb.New(s.Created), Labels: s.Labels, Volume: meta.VolumeName(s.Volume), GroupUuid: s.Group, Attempt: s.Attempt}
}
