package controller

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// mutableParameters are those that a VolumeAttributesClass may have.
var mutableParameters = []string{paramPreferredNode, paramPinnedNode, paramWriteCache, paramTier}

// mutable are the parameters that a VolumeAttributesClass may have.
type mutable struct{ backend.Mutable }

// set sets one parameter; the error names field, parameter, and possible values.
func (m *mutable) set(field, k, v string) error {
	switch k {
	case paramPreferredNode:
		if v != "" && v != "a" && v != "b" {
			return invalid(`%s: %s is %q: must be "a", "b" or empty`, field, k, v)
		}
		m.PreferredNode = v
	case paramPinnedNode:
		if v != "" && v != "a" && v != "b" && v != v1alpha1.NoPin {
			return invalid(`%s: %s is %q: must be "a", "b", %q or empty`, field, k, v, v1alpha1.NoPin)
		}
		m.PinnedNode = v
	case paramWriteCache:
		if v != "" && v != v1alpha1.WriteBack && v != v1alpha1.WriteThrough {
			return invalid("%s: %s is %q: must be %s, %s or empty", field, k, v, v1alpha1.WriteBack, v1alpha1.WriteThrough)
		}
		m.WriteCache = v
	case paramTier:
		if v != "" && v != v1alpha1.TierFast && v != v1alpha1.TierCapacity && v != v1alpha1.NoPin {
			return invalid("%s: %s is %q: must be %s, %s, %q or empty", field, k, v, v1alpha1.TierFast, v1alpha1.TierCapacity, v1alpha1.NoPin)
		}
		m.Tier = v
	}
	return nil
}

// consistent refuses a preferred node that a pin keeps the volume away from.
func (m *mutable) consistent(field string) error {
	if m.PinnedNode == "" || m.PinnedNode == v1alpha1.NoPin || m.PreferredNode == "" || m.PreferredNode == m.PinnedNode {
		return nil
	}
	return invalid("%s: %s is %q but %s is %q: leave %s out", field, paramPreferredNode, m.PreferredNode, paramPinnedNode, m.PinnedNode, paramPreferredNode)
}

// parseMutable checks the parameters of a VolumeAttributesClass.
func parseMutable(params map[string]string) (backend.Mutable, error) {
	var m mutable
	for k, v := range params {
		switch {
		case slices.Contains(mutableParameters, k):
			if err := m.set("mutable_parameters", k, v); err != nil {
				return m.Mutable, err
			}
		case strings.HasPrefix(k, reservedPrefix): // added by external-resizer with --extra-modify-metadata
		default:
			return m.Mutable, invalid("mutable_parameters: %q is unknown or cannot change: supported parameters are %s", k, strings.Join(mutableParameters, ", "))
		}
	}
	return m.Mutable, m.consistent("mutable_parameters")
}

// ControllerModifyVolume sets the parameters of a VolumeAttributesClass on a volume that may be in
// use. Other parameters stay: "SPs MUST NOT modify volumes based on the absence of keys, only keys
// that are specified should result in modifications to the volume."
func (s *Server) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if req.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	m, err := parseMutable(req.MutableParameters)
	if err != nil {
		return nil, err
	}
	done, err := s.inflight.Start(req.VolumeId)
	if err != nil {
		return nil, err
	}
	defer done()
	// "This operation MUST be idempotent." The storage may differ from what the caller assumes, so
	// it is always called.
	_, err = s.backend.ModifyVolume(ctx, req.VolumeId, m)
	return &csi.ControllerModifyVolumeResponse{}, grpcError(err)
}
