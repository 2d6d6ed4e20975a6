package controller

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/capability"
)

// CreateVolume creates a LUN, empty or from a snapshot or volume.
func (s *Server) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := checkName(req.Name); err != nil {
		return nil, err
	}
	if len(req.VolumeCapabilities) == 0 {
		return nil, invalid("volume_capabilities are missing")
	}
	access, err := capability.ParseAll(req.VolumeCapabilities)
	if err != nil {
		return nil, invalid("%v", err)
	}
	params, err := parseParameters(req.Parameters, s.backend.NeedsCluster())
	if err != nil {
		return nil, err
	}
	if s.backend.NeedsCluster() && params.cluster == "" {
		return nil, invalid("parameters: %s is missing: set it to the StorageCluster for the volumes of this StorageClass", paramCluster)
	}
	mutable, err := parseMutable(req.MutableParameters)
	if err != nil {
		return nil, err
	}
	preferred, err := preferredSegment(req.AccessibilityRequirements)
	if err != nil {
		return nil, err
	}
	want := backend.CreateVolume{ID: s.backend.VolumeID(req.Name), Name: req.Name, Cluster: params.cluster, Pool: params.pool, Labels: params.labels,
		Preferred: preferred, Requisite: requisite(req.AccessibilityRequirements), Layout: params.layout, OverPairs: params.pairs, Sessions: params.sessions, Mutable: mutable.Over(params.mutable.Mutable)}
	fstype, mode := accessLabels(access)
	want.Labels[v1alpha1.DiskLabelName], want.Labels[v1alpha1.DiskLabelFSType], want.Labels[v1alpha1.DiskLabelAccess] = req.Name, fstype, mode
	if err := setSource(&want, req.VolumeContentSource); err != nil {
		return nil, err
	}
	if err := stripable(&want, access); err != nil {
		return nil, err
	}
	done, err := s.inflight.Start(want.ID)
	if err != nil {
		return nil, err
	}
	defer done()

	// "This operation MUST be idempotent. If a volume corresponding to the specified volume name
	// already exists, is accessible from accessibility_requirements, and is compatible with the
	// specified capacity_range, volume_capabilities, parameters and mutable_parameters in the
	// CreateVolumeRequest, the Plugin MUST reply 0 OK with the corresponding CreateVolumeResponse."
	v, err := s.backend.GetVolume(ctx, want.ID)
	switch {
	case err == nil:
		if err := matchesRequest(v, want, req.CapacityRange); err != nil {
			return nil, err
		}
		return s.created(ctx, v, mutable)
	case !errors.Is(err, backend.ErrNotFound):
		return nil, grpcError(err)
	}
	source, err := s.sourceSize(ctx, want)
	if err != nil {
		return nil, grpcError(err)
	}
	if want.Size, err = chooseSize(req.CapacityRange, source, access, want.Layout); err != nil {
		return nil, err
	}
	if v, err = s.backend.CreateVolume(ctx, want); err != nil {
		return nil, grpcError(err)
	}
	return s.created(ctx, v, mutable)
}

// created returns the response for an existing volume. A caller that missed the response may repeat
// the call with another class. mutable_parameters are no reason for ALREADY_EXISTS, and would leave
// the claim stuck, so they are applied.
func (s *Server) created(ctx context.Context, v backend.Volume, m backend.Mutable) (*csi.CreateVolumeResponse, error) {
	if m.Over(v.Mutable) != v.Mutable {
		var err error
		switch v, err = s.backend.ModifyVolume(ctx, v.ID, m); {
		case errors.Is(err, backend.ErrUnsupported): // not a final error: the volume exists, and would be forgotten
			return nil, status.Errorf(codes.Unavailable, "the volume exists and is not yet as mutable_parameters say: %v", err)
		case err != nil:
			return nil, grpcError(err)
		}
	}
	return &csi.CreateVolumeResponse{Volume: volumeProto(v)}, nil
}

func setSource(want *backend.CreateVolume, source *csi.VolumeContentSource) error {
	switch {
	case source == nil:
	case source.GetSnapshot() != nil:
		want.SourceSnapshot = source.GetSnapshot().SnapshotId
	case source.GetVolume() != nil:
		want.SourceVolume = source.GetVolume().VolumeId
	}
	if source != nil && want.SourceSnapshot == "" && want.SourceVolume == "" {
		return invalid("volume_content_source: has neither a snapshot nor a volume")
	}
	return nil
}

func matchesRequest(v backend.Volume, want backend.CreateVolume, r *csi.CapacityRange) error {
	exists := func(format string, args ...any) error {
		return status.Errorf(codes.AlreadyExists, "volume %q exists, "+format, append([]any{v.Name}, args...)...)
	}
	switch {
	case v.SourceVolume != want.SourceVolume || v.SourceSnapshot != want.SourceSnapshot:
		return exists("with another content source")
	case v.Cluster != want.Cluster:
		return exists("in cluster %q, not %q", v.Cluster, want.Cluster)
	case want.Pool != "" && v.Pool != "" && v.Pool != want.Pool:
		return exists("in pool %q, not %q", v.Pool, want.Pool)
	case v.Layout != want.Layout:
		return exists("with %s", v.Layout)
	case !fits(v.Size, r):
		return exists("with %d bytes: not within capacity_range %d to %d", v.Size, r.GetRequiredBytes(), r.GetLimitBytes())
	}
	for _, k := range []string{v1alpha1.DiskLabelFSType, v1alpha1.DiskLabelAccess} {
		if v.Labels[k] != want.Labels[k] {
			return exists("for other capabilities (%s %q, not %q)", k, v.Labels[k], want.Labels[k])
		}
	}
	return nil
}

func (s *Server) sourceSize(ctx context.Context, req backend.CreateVolume) (int64, error) {
	switch {
	case req.SourceSnapshot != "":
		snap, err := s.backend.GetSnapshot(ctx, req.SourceSnapshot)
		return snap.Size, err
	case req.SourceVolume != "":
		v, err := s.backend.GetVolume(ctx, req.SourceVolume)
		return v.Size, err
	}
	return 0, nil
}

func volumeProto(v backend.Volume) *csi.Volume {
	p := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size}
	for _, t := range v.AccessibleFrom {
		p.AccessibleTopology = append(p.AccessibleTopology, &csi.Topology{Segments: t})
	}
	switch {
	case v.SourceSnapshot != "":
		p.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.SourceSnapshot}}}
	case v.SourceVolume != "":
		p.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.SourceVolume}}}
	}
	return p
}

// DeleteVolume destroys the data; the backend fails while a host is mapped.
func (s *Server) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if req.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	done, err := s.inflight.Start(req.VolumeId)
	if err != nil {
		return nil, err
	}
	defer done()
	// "If a volume corresponding to the specified volume_id does not exist [...] the Plugin MUST
	// reply 0 OK."
	return &csi.DeleteVolumeResponse{}, grpcError(s.backend.DeleteVolume(ctx, req.VolumeId))
}

// ValidateVolumeCapabilities confirms the capabilities, or returns a message.
func (s *Server) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	switch {
	case req.VolumeId == "":
		return nil, invalid("volume_id is missing")
	case len(req.VolumeCapabilities) == 0:
		return nil, invalid("volume_capabilities are missing")
	}
	v, err := s.backend.GetVolume(ctx, req.VolumeId)
	if err != nil {
		return nil, grpcError(err)
	}
	access, err := capability.ParseAll(req.VolumeCapabilities)
	if err == nil {
		_, err = parseParameters(req.Parameters, s.backend.NeedsCluster())
	}
	if err == nil {
		_, err = parseMutable(req.MutableParameters)
	}
	for _, a := range access {
		if err == nil {
			err = compatible(v, a)
		}
	}
	if err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.VolumeContext, VolumeCapabilities: req.VolumeCapabilities, Parameters: req.Parameters,
		MutableParameters: req.MutableParameters}}, nil
}

// page converts CSI's paging to the backend's.
func page(maxEntries int32, token string) (backend.Page, error) {
	if maxEntries < 0 {
		return backend.Page{}, invalid("max_entries %d is negative", maxEntries)
	}
	return backend.Page{After: token, Limit: int(maxEntries)}, nil
}

// ListVolumes lists every LUN of the backend, with the nodes that it is published to.
func (s *Server) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	p, err := page(req.MaxEntries, req.StartingToken)
	if err != nil {
		return nil, err
	}
	list, next, err := s.backend.ListVolumes(ctx, p)
	if err != nil {
		return nil, grpcError(err)
	}
	r := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range list {
		r.Entries = append(r.Entries, &csi.ListVolumesResponse_Entry{Volume: volumeProto(v),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.Hosts}})
	}
	return r, nil
}

// ControllerGetVolume returns one volume, as ListVolumes does.
func (s *Server) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if req.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	v, err := s.backend.GetVolume(ctx, req.VolumeId)
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.ControllerGetVolumeResponse{Volume: volumeProto(v),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: v.Hosts}}, nil
}

// GetCapacity returns the largest possible volume with these capabilities and parameters. A LUN is
// on one pair, so the free space of several pairs cannot be added: both values are the largest LUN
// that fits on one pair in the pool of the parameters. The scheduler compares a claim with
// maximum_volume_size: "The largest size that may be used in a
// CreateVolumeRequest.capacity_range.required_bytes field". The answer is the same for every
// segment, also an unknown one, except for a pool that only some workers reach: it is 0 for the
// others, and for a segment without the labels that tell them apart. What a StorageClass allows is
// not known here; the scheduler checks it.
func (s *Server) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if _, err := capability.ParseAll(req.VolumeCapabilities); err != nil {
		return nil, invalid("%v", err)
	}
	params, err := parseParameters(req.Parameters, s.backend.NeedsCluster())
	if err != nil {
		return nil, err
	}
	free, err := s.backend.Capacity(ctx, params.cluster, params.pool, req.AccessibleTopology.GetSegments())
	if err != nil {
		return nil, grpcError(err)
	}
	free = min(free, backend.MaxSize) / backend.SizeStep * backend.SizeStep
	return &csi.GetCapacityResponse{AvailableCapacity: free, MaximumVolumeSize: wrapperspb.Int64(free)}, nil
}

// ControllerExpandVolume expands the LUN online. The node has to expand as well, also for raw block
// volumes: its device has a size.
func (s *Server) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	r := req.CapacityRange
	switch {
	case req.VolumeId == "":
		return nil, invalid("volume_id is missing")
	case r == nil:
		return nil, invalid("capacity_range is missing")
	case r.RequiredBytes < 0 || r.LimitBytes < 0 || r.LimitBytes > 0 && r.RequiredBytes > r.LimitBytes:
		return nil, invalid("capacity_range: required_bytes %d and limit_bytes %d contradict each other or are negative", r.RequiredBytes, r.LimitBytes)
	}
	if req.VolumeCapability != nil {
		if _, err := capability.Parse(req.VolumeCapability); err != nil {
			return nil, invalid("volume_capability: %v", err)
		}
	}
	done, err := s.inflight.Start(req.VolumeId)
	if err != nil {
		return nil, err
	}
	defer done()
	v, err := s.backend.GetVolume(ctx, req.VolumeId)
	if err != nil {
		return nil, grpcError(err)
	}
	size, err := roundUp(r.RequiredBytes, step(v.Layout))
	if err != nil {
		return nil, err
	}
	if r.LimitBytes > 0 && size > r.LimitBytes {
		return nil, status.Errorf(codes.OutOfRange, "capacity_range: no multiple of %d bytes is within %d to %d", step(v.Layout), r.RequiredBytes, r.LimitBytes)
	}
	// "If a volume corresponding to the specified volume ID is already larger than or equal to the
	// target capacity of the expansion request, the plugin SHOULD reply 0 OK."
	if v.Size < size {
		if v, err = s.backend.ExpandVolume(ctx, req.VolumeId, size); err != nil {
			return nil, grpcError(err)
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}
