package controller

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/capability"
)

// ControllerPublishVolume maps the LUN to a node, whose ID is its IQN.
func (s *Server) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	switch {
	case req.VolumeId == "":
		return nil, invalid("volume_id is missing")
	case req.NodeId == "":
		return nil, invalid("node_id is missing")
	case req.VolumeCapability == nil:
		return nil, invalid("volume_capability is missing")
	}
	access, err := capability.Parse(req.VolumeCapability)
	if err != nil {
		return nil, invalid("volume_capability: %v", err)
	}
	auth, mutual, err := attach.ParseSecrets(req.Secrets)
	if err != nil {
		return nil, grpcError(err)
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
	// Node IDs are iSCSI names; any other ID cannot be a node of this driver.
	if !isNode(req.NodeId) {
		return nil, status.Errorf(codes.NotFound, "node %q does not exist: node ids are iSCSI names (iqn....)", req.NodeId)
	}
	if err := compatible(v, access); err != nil {
		return nil, err
	}
	host := strings.ToLower(req.NodeId)
	others := slices.DeleteFunc(slices.Clone(v.Hosts), func(h string) bool { return h == host })
	// "FAILED_PRECONDITION: Indicates that a volume corresponding to the specified volume_id has
	// already been published at another node and does not have MULTI_NODE volume capability."
	if len(others) > 0 && !access.MultiNode() {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is published to %s", req.VolumeId, strings.Join(others, ", "))
	}
	readOnly := req.Readonly || access.ReadOnly()
	if replay := readOnly && !access.Block && !access.WithoutLog(); replay && v.Layout.Count > 0 {
		return nil, invalid("readonly: the log of the filesystem of a striped volume cannot be replayed on a worker that may not write it: leave readonly out, and mount it readOnly in the pod")
	}
	// MULTI_NODE_SINGLE_WRITER: "Only one of the node can be used as read/write. The rest will be
	// readonly."
	writers := slices.DeleteFunc(slices.Clone(v.Writers), func(h string) bool { return h == host })
	if access.OneWriter() && !readOnly && len(writers) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is published to %s for writing, and %s allows one writer: set readonly",
			req.VolumeId, strings.Join(writers, ", "), access.Mode)
	}
	// "ALREADY_EXISTS: Indicates that a volume corresponding to the specified volume_id has already
	// been published at the node corresponding to the specified node_id but is incompatible with
	// the specified volume_capability or readonly flag." The backend checks this, because it knows
	// how the volume is published.
	a, err := s.backend.Publish(ctx, backend.Publish{VolumeID: req.VolumeId, HostIQN: host, ReadOnly: readOnly,
		Replay: readOnly && !access.Block && !access.WithoutLog(), Exclusive: !access.MultiNode(), OneWriter: access.OneWriter(), Auth: auth, MutualAuth: mutual})
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: a.PublishContext()}, nil
}

func isNode(id string) bool {
	return len(id) <= 223 && (strings.HasPrefix(id, "iqn.") || strings.HasPrefix(id, "eui.") || strings.HasPrefix(id, "naa."))
}

// ControllerUnpublishVolume fences the node from the LUN: after it returns, no command of the node
// runs or will be accepted.
func (s *Server) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if req.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	done, err := s.inflight.Start(req.VolumeId)
	if err != nil {
		return nil, err
	}
	defer done()
	// "If the volume corresponding to the volume_id or the Node corresponding to node_id cannot be
	// found by the Plugin and the volume can be safely regarded as ControllerUnpublished from the
	// Node, the plugin SHOULD return 0 OK."
	if req.NodeId != "" && !isNode(req.NodeId) {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	// "If this value is not set [node_id], the SP MUST unpublish the volume from all nodes it is
	// published to."
	return &csi.ControllerUnpublishVolumeResponse{}, grpcError(s.backend.Unpublish(ctx, req.VolumeId, strings.ToLower(req.NodeId)))
}
