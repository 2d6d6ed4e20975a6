package identity

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestIdentityAdvertisesTopologyAndServices(t *testing.T) {
	ctx := t.Context()
	for _, controller := range []bool{false, true} {
		s := &Server{Version: "v1", Controller: controller, Groups: !controller}
		r, err := s.GetPluginCapabilities(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		found, groups, topology := false, false, false
		for _, c := range r.Capabilities {
			found = found || c.GetService().GetType() == csi.PluginCapability_Service_CONTROLLER_SERVICE
			groups = groups || c.GetService().GetType() == csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE
			topology = topology || c.GetService().GetType() == csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS
		}
		if !topology || len(Topology) == 0 {
			t.Error("without a topology key the provisioner deletes the capacity that it publishes")
		}
		if found != controller || groups == controller {
			t.Errorf("controller %v, advertised %v, with groups %v", controller, found, groups)
		}
		if p, err := s.Probe(ctx, nil); err != nil || !p.Ready.Value {
			t.Errorf("probe: %v, %v", p, err)
		}
	}
	s := &Server{Ready: func(context.Context) error { return errors.New("no") }}
	if _, err := s.Probe(ctx, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("probe of a broken plugin: %v", err)
	}
}
