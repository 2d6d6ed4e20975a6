package controller

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (s *Server) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	r := &csi.GroupControllerGetCapabilitiesResponse{}
	if s.backend.GroupSnapshots() {
		r.Capabilities = []*csi.GroupControllerServiceCapability{{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}}}}
	}
	return r, nil
}

func groupProto(g backend.GroupSnapshot) *csi.VolumeGroupSnapshot {
	p := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.Created), ReadyToUse: true} // as for snapshots
	for _, s := range g.Snapshots {
		p.Snapshots = append(p.Snapshots, snapshotProto(s))
	}
	return p
}

// checkSources checks the list of a group's volumes, without asking the backend.
func checkSources(ids []string) error {
	switch {
	case len(ids) == 0:
		return invalid("source_volume_ids are missing")
	case len(ids) > v1alpha1.MaxGroupMembers:
		return invalid("source_volume_ids: %d volumes are more than a group snapshot can have: %d", len(ids), v1alpha1.MaxGroupMembers)
	}
	for i, id := range ids {
		if id == "" {
			return invalid("source_volume_ids[%d] is empty", i)
		}
		if first := slices.Index(ids, id); first != i {
			return invalid("source_volume_ids[%d] and source_volume_ids[%d] are both %q: name each volume once", first, i, id)
		}
	}
	return nil
}

// paramDeletionPolicy is a field of a class, which the sidecar carries out. Kubernetes' storage
// tests have it among the parameters as well, where it has no meaning.
const paramDeletionPolicy = "deletionPolicy"

// CreateVolumeGroupSnapshot takes snapshots of several volumes at one instant: "This group snapshot
// MUST give a write-order consistency guarantee or fail if that's not possible."
func (s *Server) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if err := checkName(req.Name); err != nil {
		return nil, err
	}
	if err := checkSources(req.SourceVolumeIds); err != nil {
		return nil, err
	}
	for k, v := range req.Parameters {
		switch {
		case strings.HasPrefix(k, reservedPrefix):
		case k == paramDeletionPolicy && (v == "Delete" || v == "Retain"):
		default:
			return nil, invalid("parameters: %s is %q, which is unknown: a VolumeGroupSnapshotClass supports only %s*", k, v, reservedPrefix)
		}
	}
	id := s.backend.GroupSnapshotID(req.Name)
	done, err := s.inflight.Start(id)
	if err != nil {
		return nil, err
	}
	defer done()
	// "If a group snapshot corresponding to the specified group snapshot name, source_volume_ids,
	// and parameters is successfully created (meaning all snapshots associated with the group are
	// successfully cut), the Plugin MUST reply 0 OK with the corresponding
	// CreateVolumeGroupSnapshotResponse"; "ALREADY_EXISTS: Indicates that a group snapshot
	// corresponding to the specified group snapshot name already exists but is incompatible with
	// the specified source_volume_ids or parameters." The list is a set: its order means nothing.
	g, err := s.backend.GetGroupSnapshot(ctx, id)
	switch {
	case err == nil && !sameSet(sourcesOf(g), req.SourceVolumeIds):
		return nil, status.Errorf(codes.AlreadyExists, "group snapshot %q exists, of volumes %s", req.Name, strings.Join(sourcesOf(g), ", "))
	case errors.Is(err, backend.ErrNotFound):
		g, err = s.backend.CreateGroupSnapshot(ctx, id, req.Name, req.SourceVolumeIds)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: groupProto(g)}, nil
}

// DeleteVolumeGroupSnapshot deletes a group snapshot and its snapshots; volumes restored from them
// stay.
func (s *Server) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if req.GroupSnapshotId == "" {
		return nil, invalid("group_snapshot_id is missing")
	}
	done, err := s.inflight.Start(req.GroupSnapshotId)
	if err != nil {
		return nil, err
	}
	defer done()
	// "If a group snapshot corresponding to the specified group_snapshot_id does not exist [...]
	// the Plugin MUST reply 0 OK"; snapshot_ids: "If SP does not need to rely on this field to
	// delete the snapshots in the group, it SHOULD check this field and report an error if it has
	// the ability to detect a mismatch", and the error is INVALID_ARGUMENT.
	if err := s.backend.DeleteGroupSnapshot(ctx, req.GroupSnapshotId, req.SnapshotIds); err != nil {
		if errors.Is(err, backend.ErrInvalid) {
			return nil, invalid("snapshot_ids: %v", err)
		}
		return nil, grpcError(err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// GetVolumeGroupSnapshot returns a group snapshot.
func (s *Server) GetVolumeGroupSnapshot(ctx context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if req.GroupSnapshotId == "" {
		return nil, invalid("group_snapshot_id is missing")
	}
	// "If the volume group snapshot does not exist any more, GetVolumeGroupSnapshot should return
	// gRPC error code NOT_FOUND."
	g, err := s.backend.GetGroupSnapshot(ctx, req.GroupSnapshotId)
	if err != nil {
		return nil, grpcError(err)
	}
	// As in DeleteVolumeGroupSnapshot: "it SHOULD check this field and report an error".
	if have := snapshotsOf(g); !sameSet(have, req.SnapshotIds) {
		return nil, invalid("snapshot_ids: the snapshots of group snapshot %q are %s, not %s", g.ID, strings.Join(have, ", "), strings.Join(req.SnapshotIds, ", "))
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: groupProto(g)}, nil
}

func sourcesOf(g backend.GroupSnapshot) (out []string) {
	for _, s := range g.Snapshots {
		out = append(out, s.SourceVolume)
	}
	return out
}

func snapshotsOf(g backend.GroupSnapshot) (out []string) {
	for _, s := range g.Snapshots {
		out = append(out, s.ID)
	}
	return out
}

// sameSet reports whether two lists have the same elements, in any order.
func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
