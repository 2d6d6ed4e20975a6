// Package identity is the CSI identity service.
package identity

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// DriverName is the plugin's name in CSIDriver, StorageClass and PersistentVolume objects.
const DriverName = "csi.gemel.storage"

// Server implements csi.IdentityServer.
type Server struct {
	csi.UnimplementedIdentityServer
	Version    string
	Controller bool // the controller service is served
	Groups     bool // the group controller service is served
	// Ready returns why the plugin is not healthy, nil if it is; may be nil.
	Ready func(context.Context) error
}

// GetPluginInfo returns driver and version.
func (s *Server) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: DriverName, VendorVersion: s.Version}, nil
}

// Topology is the part of the CSI topology segment that every worker with the node plugin has,
// because every worker reaches every volume that is not restricted; zone and region come with it
// where workers have them. It constrains nothing (no pool may name it), but Kubernetes' provisioner
// publishes the capacity only of segments with a key: it deletes a capacity object without one as
// foreign, and then pods with unbound volumes (WaitForFirstConsumer) are not scheduled.
var Topology = map[string]string{DriverName + "/reach": "all"}

// GetPluginCapabilities lists the services.
func (s *Server) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	r := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}}}}
	services := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}
	if s.Controller {
		services = append(services, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	}
	if s.Groups {
		services = append(services, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	}
	for _, t := range services {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return r, nil
}

// Probe reports whether the plugin works. Unreachable storage does not count: restarting the plugin
// would not help.
func (s *Server) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if s.Ready != nil {
		if err := s.Ready(ctx); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "%v", err)
		}
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
