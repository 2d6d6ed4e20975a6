package controller

import (
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// mutable are the parameters that a VolumeAttributesClass may have.
type mutable struct{ backend.Mutable }

// set takes one over; the error names field, parameter, and what is possible.
func (m *mutable) set(field, k, v string) error {
	switch k {
	case paramPreferredNode:
		if v != "" && v != "a" && v != "b" {
			return invalid(`%s: %s is %q: "a", "b" or empty are possible`, field, k, v)
		}
		m.PreferredNode = v
	case paramWriteCache:
		if v != "" && v != v1alpha1.WriteBack && v != v1alpha1.WriteThrough {
			return invalid("%s: %s is %q: %s, %s or empty are possible", field, k, v, v1alpha1.WriteBack, v1alpha1.WriteThrough)
		}
		m.WriteCache = v
	}
	return nil
}

// parseMutable checks the parameters of a VolumeAttributesClass.
func parseMutable(q map[string]string) (backend.Mutable, error) {
	var m mutable
	for k, v := range q {
		switch {
		case k == paramPreferredNode || k == paramWriteCache:
			if err := m.set("mutable_parameters", k, v); err != nil {
				return m.Mutable, err
			}
		case strings.HasPrefix(k, reservedPrefix): // what external-resizer adds with --extra-modify-metadata
		default:
			return m.Mutable, invalid("mutable_parameters: %q is not known or cannot change: there are %s, %s", k, paramPreferredNode, paramWriteCache)
		}
	}
	return m.Mutable, nil
}

// ControllerModifyVolume gives a volume the parameters of a VolumeAttributesClass, while it is in use. What the class does not name stays:
// "SPs MUST NOT modify volumes based on the absence of keys, only keys that are specified should result in modifications to the volume."
func (s *Server) ControllerModifyVolume(ctx context.Context, q *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if q.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	m, err := parseMutable(q.MutableParameters)
	if err != nil {
		return nil, err
	}
	done, err := s.inflight.Start(q.VolumeId)
	if err != nil {
		return nil, err
	}
	defer done()
	// "This operation MUST be idempotent." What the storage has may differ from what the caller believes, so it is asked.
	_, err = s.backend.ModifyVolume(ctx, q.VolumeId, m)
	return &csi.ControllerModifyVolumeResponse{}, grpcError(err)
}
