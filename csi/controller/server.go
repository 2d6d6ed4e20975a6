// Package controller is the CSI controller service over a backend. It keeps no state of its own. Every call goes the
// same way: validate, claim the object (ABORTED while another call has it), look whether it is done already, act.
package controller

import (
	"context"
	"errors"
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/inflight"
)

// capabilities is all that the driver can do, and nothing that it can not.
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
	csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
	csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
}

// Server implements csi.ControllerServer.
type Server struct {
	csi.UnimplementedControllerServer
	backend  backend.Backend
	log      *slog.Logger
	inflight inflight.Set
}

// New serves a backend.
func New(b backend.Backend, log *slog.Logger) *Server { return &Server{backend: b, log: log} }

// ControllerGetCapabilities lists what the service does.
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

// grpcError gives an error of the backend the code that the CSI specification has for it.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	for _, m := range []struct {
		err  error
		code codes.Code
	}{
		{backend.ErrNotFound, codes.NotFound},
		{backend.ErrExists, codes.AlreadyExists},
		{backend.ErrInUse, codes.FailedPrecondition},
		{backend.ErrInvalid, codes.InvalidArgument},
		{attach.ErrInvalid, codes.InvalidArgument},
		{backend.ErrExhausted, codes.ResourceExhausted},
		{backend.ErrBadToken, codes.Aborted}, // ListVolumes: "The caller SHOULD start the operation again with an empty starting_token."
		{backend.ErrTimeout, codes.DeadlineExceeded},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
		{backend.ErrUnavailable, codes.Unavailable},
	} {
		if errors.Is(err, m.err) {
			code = m.code
			break
		}
	}
	return status.Error(code, err.Error())
}
