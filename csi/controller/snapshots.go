package controller

import (
	"context"
	"errors"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gemel-storage/gemel/csi/backend"
)

func snapshotProto(s backend.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: s.ID, SourceVolumeId: s.SourceVolume, SizeBytes: s.Size, CreationTime: timestamppb.New(s.Created),
		ReadyToUse: true} // it is cut and usable when the backend returns
}

// CreateSnapshot cuts a crash-consistent point in time.
func (s *Server) CreateSnapshot(ctx context.Context, q *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := checkName(q.Name); err != nil {
		return nil, err
	}
	if q.SourceVolumeId == "" {
		return nil, invalid("source_volume_id is missing")
	}
	for k := range q.Parameters {
		if !strings.HasPrefix(k, reservedPrefix) {
			return nil, invalid("parameters: %q is not known: a VolumeSnapshotClass has only %s*", k, reservedPrefix)
		}
	}
	id := s.backend.SnapshotID(q.Name)
	done, err := s.inflight.Start(id)
	if err != nil {
		return nil, err
	}
	defer done()
	// "This operation MUST be idempotent. If a snapshot corresponding to the specified snapshot name is successfully cut and ready to use
	// [...] the Plugin MUST reply 0 OK"; "ALREADY_EXISTS: Indicates that a snapshot corresponding to the specified snapshot name already
	// exists but is incompatible with the specified volume_id."
	snap, err := s.backend.GetSnapshot(ctx, id)
	switch {
	case err == nil && snap.SourceVolume != q.SourceVolumeId:
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists, of volume %s", q.Name, snap.SourceVolume)
	case errors.Is(err, backend.ErrNotFound):
		snap, err = s.backend.CreateSnapshot(ctx, id, q.Name, q.SourceVolumeId)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: snapshotProto(snap)}, nil
}

// DeleteSnapshot removes it; volumes made from it stay.
func (s *Server) DeleteSnapshot(ctx context.Context, q *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if q.SnapshotId == "" {
		return nil, invalid("snapshot_id is missing")
	}
	done, err := s.inflight.Start(q.SnapshotId)
	if err != nil {
		return nil, err
	}
	defer done()
	// "If a snapshot corresponding to the specified snapshot_id does not exist [...] the Plugin MUST reply 0 OK."
	return &csi.DeleteSnapshotResponse{}, grpcError(s.backend.DeleteSnapshot(ctx, q.SnapshotId))
}

// GetSnapshot returns one.
func (s *Server) GetSnapshot(ctx context.Context, q *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if q.SnapshotId == "" {
		return nil, invalid("snapshot_id is missing")
	}
	snap, err := s.backend.GetSnapshot(ctx, q.SnapshotId)
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.GetSnapshotResponse{Snapshot: snapshotProto(snap)}, nil
}

// ListSnapshots lists all, those of one volume, or one; ids of nothing give an empty list.
func (s *Server) ListSnapshots(ctx context.Context, q *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	p, err := page(q.MaxEntries, q.StartingToken)
	if err != nil {
		return nil, err
	}
	r := &csi.ListSnapshotsResponse{}
	if q.SnapshotId != "" {
		snap, err := s.backend.GetSnapshot(ctx, q.SnapshotId)
		if errors.Is(err, backend.ErrNotFound) {
			return r, nil
		}
		if err != nil {
			return nil, grpcError(err)
		}
		if q.SourceVolumeId == "" || q.SourceVolumeId == snap.SourceVolume {
			r.Entries = []*csi.ListSnapshotsResponse_Entry{{Snapshot: snapshotProto(snap)}}
		}
		return r, nil
	}
	list, next, err := s.backend.ListSnapshots(ctx, q.SourceVolumeId, p)
	if err != nil {
		return nil, grpcError(err)
	}
	r.NextToken = next
	for _, snap := range list {
		r.Entries = append(r.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshotProto(snap)})
	}
	return r, nil
}
