package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/gemel-storage/gemel/csi/backend"
)

// volumeHealth is the health of the storage for a volume; without entries if it is healthy.
func volumeHealth(id string, h backend.Health) *csi.VolumeHealth {
	v := &csi.VolumeHealth{VolumeId: id}
	if h.Reason != "" {
		kind := csi.VolumeHealthErrorType_DEGRADED
		if !h.Serving {
			kind = csi.VolumeHealthErrorType_INACCESSIBLE
		}
		v.HealthStatuses = []*csi.VolumeHealth_VolumeHealthEntry{{Status: kind, Reason: h.Reason, Message: h.Message}}
	}
	return v
}

// ControllerGetVolumeHealth reports lost redundancy and lost service.
func (s *Server) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if req.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	health, err := s.backend.Health(ctx)
	if err != nil {
		return nil, grpcError(err)
	}
	// If there is only one pair and it does not serve, the volume cannot be read.
	if h, only := health[""]; only && !h.Serving {
		return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: volumeHealth(req.VolumeId, h)}, nil
	}
	v, err := s.backend.GetVolume(ctx, req.VolumeId)
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: volumeHealth(req.VolumeId, healthOf(v, health))}, nil
}

// healthOf is the health of the pair of a volume, and of several the worst: a striped volume is as
// healthy as its LUNs together.
func healthOf(v backend.Volume, pairs map[string]backend.Health) (worst backend.Health) {
	names := v.Pairs
	if len(names) == 0 {
		names = []string{""}
	}
	for i, name := range names {
		h, ok := pairs[name]
		if !ok {
			h = backend.Health{Reason: "PairUnknown", Message: "the health of pair " + name + " is unknown: check that its TargetPair exists"}
		}
		if i == 0 || worst.Reason == "" || h.Reason != "" && worst.Serving && !h.Serving {
			worst = h
		}
	}
	return worst
}

// ControllerListVolumeHealth lists the unhealthy volumes: those of unhealthy pairs.
func (s *Server) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	p, err := page(req.MaxEntries, req.StartingToken)
	if err != nil {
		return nil, err
	}
	r := &csi.ControllerListVolumeHealthResponse{}
	health, err := s.backend.Health(ctx)
	if err != nil {
		return nil, grpcError(err)
	}
	if h, only := health[""]; only && h.Reason == "" {
		return r, nil
	}
	list, next, err := s.backend.ListVolumes(ctx, p)
	if err != nil {
		return nil, grpcError(err)
	}
	r.NextToken = next
	for _, v := range list {
		if h := healthOf(v, health); h.Reason != "" {
			r.Entries = append(r.Entries, volumeHealth(v.ID, h))
		}
	}
	return r, nil
}
