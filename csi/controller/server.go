// Package controller is the CSI controller service over a backend. It keeps no state. Every call
// has the same steps: validate, lock the object (ABORTED while another call has it), check whether
// it is done already, act.
package controller

import (
	"context"
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/inflight"
	"github.com/gemel-storage/gemel/internal/grpcerr"
)

// capabilities of the driver.
var capabilities = []csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
	csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
	csi.ControllerServiceCapability_RPC_GET_VOLUME,
	csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
	csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
}

// Server implements csi.ControllerServer, and csi.GroupControllerServer if the backend has group
// snapshots.
type Server struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	backend  backend.Backend
	log      *slog.Logger
	inflight inflight.Set
}

// New returns a server of a backend.
func New(b backend.Backend, log *slog.Logger) *Server { return &Server{backend: b, log: log} }

// ControllerGetCapabilities implements csi.ControllerServer.
func (s *Server) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range capabilities {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}}})
	}
	return r, nil
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// errorCodes are the codes that the CSI specification has for errors of the backend.
var errorCodes = []grpcerr.Code{
	{Err: backend.ErrNotFound, Code: codes.NotFound},
	{Err: backend.ErrExists, Code: codes.AlreadyExists},
	{Err: backend.ErrInUse, Code: codes.FailedPrecondition},
	// "Cannot snapshot multiple volumes together" (CSI, CreateVolumeGroupSnapshot).
	{Err: backend.ErrNotTogether, Code: codes.FailedPrecondition},
	// "Snapshot is part of a group" (CSI, DeleteSnapshot).
	{Err: backend.ErrInGroup, Code: codes.InvalidArgument},
	{Err: backend.ErrInvalid, Code: codes.InvalidArgument},
	{Err: attach.ErrInvalid, Code: codes.InvalidArgument},
	{Err: backend.ErrExhausted, Code: codes.ResourceExhausted},
	// "Unable to provision in accessible_topology" (CSI, CreateVolume). Only after this code does
	// Kubernetes try another worker.
	{Err: backend.ErrUnreachable, Code: codes.ResourceExhausted},
	{Err: backend.ErrUnsupported, Code: codes.Unimplemented},
	{Err: backend.ErrBadToken, Code: codes.Aborted}, // ListVolumes: "The caller SHOULD start the operation again with an empty starting_token."
	{Err: backend.ErrTimeout, Code: codes.DeadlineExceeded},
	// Context errors come before backend.ErrUnavailable: at the caller's deadline the backend wraps
	// both.
	{Err: context.DeadlineExceeded, Code: codes.DeadlineExceeded},
	{Err: context.Canceled, Code: codes.Canceled},
	{Err: backend.ErrUnavailable, Code: codes.Unavailable},
}

func grpcError(err error) error { return grpcerr.Status(err, errorCodes) }
