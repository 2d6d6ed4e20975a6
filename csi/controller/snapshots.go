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
		GroupSnapshotId: s.Group, ReadyToUse: true} // the snapshot is usable when the backend returns
}

// CreateSnapshot takes a crash-consistent snapshot.
func (s *Server) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := checkName(req.Name); err != nil {
		return nil, err
	}
	if req.SourceVolumeId == "" {
		return nil, invalid("source_volume_id is missing")
	}
	for k := range req.Parameters {
		if !strings.HasPrefix(k, reservedPrefix) {
			return nil, invalid("parameters: %q is unknown: a VolumeSnapshotClass supports only %s*", k, reservedPrefix)
		}
	}
	id := s.backend.SnapshotID(req.Name)
	done, err := s.inflight.Start(id)
	if err != nil {
		return nil, err
	}
	defer done()
	// "This operation MUST be idempotent. If a snapshot corresponding to the specified snapshot
	// name is successfully cut and ready to use [...] the Plugin MUST reply 0 OK"; "ALREADY_EXISTS:
	// Indicates that a snapshot corresponding to the specified snapshot name already exists but is
	// incompatible with the specified volume_id."
	snap, err := s.backend.GetSnapshot(ctx, id)
	switch {
	case err == nil && snap.SourceVolume != req.SourceVolumeId:
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists, of volume %s", req.Name, snap.SourceVolume)
	case errors.Is(err, backend.ErrNotFound):
		snap, err = s.backend.CreateSnapshot(ctx, id, req.Name, req.SourceVolumeId)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: snapshotProto(snap)}, nil
}

// DeleteSnapshot deletes a snapshot; volumes restored from it stay.
func (s *Server) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if req.SnapshotId == "" {
		return nil, invalid("snapshot_id is missing")
	}
	done, err := s.inflight.Start(req.SnapshotId)
	if err != nil {
		return nil, err
	}
	defer done()
	// "If a snapshot corresponding to the specified snapshot_id does not exist [...] the Plugin
	// MUST reply 0 OK." "INVALID_ARGUMENT: Indicates that the snapshot [...] could not be deleted
	// because it is part of a group snapshot [...]."
	return &csi.DeleteSnapshotResponse{}, grpcError(s.backend.DeleteSnapshot(ctx, req.SnapshotId))
}

// GetSnapshot returns a snapshot.
func (s *Server) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if req.SnapshotId == "" {
		return nil, invalid("snapshot_id is missing")
	}
	snap, err := s.backend.GetSnapshot(ctx, req.SnapshotId)
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.GetSnapshotResponse{Snapshot: snapshotProto(snap)}, nil
}

// ListSnapshots lists all snapshots, those of one volume, or one; the list is empty for an unknown
// ID.
func (s *Server) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	p, err := page(req.MaxEntries, req.StartingToken)
	if err != nil {
		return nil, err
	}
	r := &csi.ListSnapshotsResponse{}
	if req.SnapshotId != "" {
		snap, err := s.backend.GetSnapshot(ctx, req.SnapshotId)
		if errors.Is(err, backend.ErrNotFound) {
			return r, nil
		}
		if err != nil {
			return nil, grpcError(err)
		}
		if req.SourceVolumeId == "" || req.SourceVolumeId == snap.SourceVolume {
			r.Entries = []*csi.ListSnapshotsResponse_Entry{{Snapshot: snapshotProto(snap)}}
		}
		return r, nil
	}
	list, next, err := s.backend.ListSnapshots(ctx, req.SourceVolumeId, p)
	if err != nil {
		return nil, grpcError(err)
	}
	r.NextToken = next
	for _, snap := range list {
		r.Entries = append(r.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshotProto(snap)})
	}
	return r, nil
}
