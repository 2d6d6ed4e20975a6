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
	Controller bool // the controller service is served as well
	// Ready says why the plugin is not healthy; nil when it is.
	Ready func(context.Context) error
}

// GetPluginInfo names driver and version.
func (s *Server) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: DriverName, VendorVersion: s.Version}, nil
}

// Topology is where every worker with the node plugin is, by its CSI segments: in one place, as all of them reach every volume. It
// constrains nothing (volumes name no topology), but Kubernetes' provisioner can tell the capacity only of segments with
// a key: what it publishes for one without it deletes again as foreign, and then no pod whose volume waits for
// it (WaitForFirstConsumer) is scheduled.
var Topology = map[string]string{DriverName + "/reach": "all"}

// GetPluginCapabilities lists which services there are.
func (s *Server) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	r := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}}}}
	services := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}
	if s.Controller {
		services = append(services, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	}
	for _, t := range services {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return r, nil
}

// Probe tells whether the plugin itself works. Storage that is not reachable is not its fault: restarting it would not help.
func (s *Server) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if s.Ready != nil {
		if err := s.Ready(ctx); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "%v", err)
		}
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
