package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/gemel-storage/gemel/csi/backend"
)

// volumeHealth is the storage's health seen from a volume: nothing when all is well.
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
func (s *Server) ControllerGetVolumeHealth(ctx context.Context, q *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if q.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	health, err := s.backend.Health(ctx)
	if err != nil {
		return nil, grpcError(err)
	}
	// Where there is but one pair and it does not serve, it cannot be asked for the volume either.
	if h, only := health[""]; only && !h.Serving {
		return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: volumeHealth(q.VolumeId, h)}, nil
	}
	v, err := s.backend.GetVolume(ctx, q.VolumeId)
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: volumeHealth(q.VolumeId, healthOf(v, health))}, nil
}

// healthOf a volume is that of its pair.
func healthOf(v backend.Volume, pairs map[string]backend.Health) backend.Health {
	h, ok := pairs[v.Pair]
	if !ok {
		return backend.Health{Reason: "PairUnknown", Message: "nothing is known of the pair " + v.Pair}
	}
	return h
}

// ControllerListVolumeHealth lists the volumes that are not well: those of pairs that are not.
func (s *Server) ControllerListVolumeHealth(ctx context.Context, q *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	p, err := page(q.MaxEntries, q.StartingToken)
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
