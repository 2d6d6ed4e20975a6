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

func healthOf(v backend.Volume, pairs map[string]backend.Health) backend.Health {
	h, ok := pairs[v.Pair]
	if !ok {
		return backend.Health{Reason: "PairUnknown", Message: "the health of pair " + v.Pair + " is unknown: check that its TargetPair exists"}
	}
	return h
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
