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
func (c *server) CreateSnapshot(ctx context.Context, q *targetv1.CreateSnapshotRequest) (*targetv1.Snapshot, error) {
	if err := errors.Join(checkUUID("uuid", q.Uuid), checkUUID("source_lun_uuid", q.SourceLunUuid), checkLabels(q.Labels), checkName(q.Name)); err != nil {
		return nil, firstStatus(err)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if old := c.snapshot(q.Uuid); old == nil || old.Stage != meta.Ready || old.Source != q.SourceLunUuid || old.Name != q.Name {
		s := meta.Snapshot{UUID: q.Uuid, Name: q.Name, Source: q.SourceLunUuid, Labels: q.Labels, Created: meta.Now()}
		if err := c.n.CreateSnapshot(ctx, s); err != nil {
			return nil, grpcError(err)
		}
	}
	s := c.snapshot(q.Uuid)
	if s == nil || s.Stage != meta.Ready {
		return nil, status.Errorf(codes.Unavailable, "snapshot %s is committed but not applied here yet: ask again", q.Uuid)
	}
	return snapshotProto(s), nil
}

// DeleteSnapshot implements targetv1.TargetServiceServer.
func (c *server) DeleteSnapshot(ctx context.Context, q *targetv1.DeleteSnapshotRequest) (*targetv1.DeleteSnapshotResponse, error) {
	if err := checkUUID("uuid", q.Uuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	_, err := c.n.Change(ctx, &meta.Entry{DeleteSnapshot: &meta.Object{UUID: q.Uuid}})
	return &targetv1.DeleteSnapshotResponse{}, grpcError(err)
}

// ListSnapshots implements targetv1.TargetServiceServer.
func (c *server) ListSnapshots(_ context.Context, q *targetv1.ListSnapshotsRequest) (*targetv1.ListSnapshotsResponse, error) {
	if err := c.member(); err != nil {
		return nil, err
	}
	var sel []*meta.Snapshot
	c.n.ReadMetadata(func(state *meta.State) {
		for _, s := range state.SortedSnapshots() {
			if s.Stage == meta.Ready && (q.SourceLunUuid == "" || s.Source == q.SourceLunUuid) && (q.Uuid == "" || s.UUID == q.Uuid) && (q.Name == "" || s.Name == q.Name) {
				sel = append(sel, s)
			}
		}
	})
	out, next := page(sel, func(s *meta.Snapshot) string { return s.UUID }, q.AfterUuid, q.Limit)
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
		Created: timestamppb.New(s.Created), Labels: s.Labels, Volume: meta.VolumeName(s.Volume)}
}
