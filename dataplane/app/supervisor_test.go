package app

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/node"
)

// The operator gives supervisors by the environment. A flag counts more.
func TestSupervisorsFromTheEnvironment(t *testing.T) {
	t.Setenv("GEMEL_SUPERVISOR_LISTEN", "0.0.0.0:3263")
	t.Setenv("GEMEL_PEER_SUPERVISOR", "10.0.0.2:3263")
	cfg := node.Config{PeerSupervisor: "10.0.0.9:3263"}
	fromEnvironment(&cfg)
	if cfg.SupervisorListen != "0.0.0.0:3263" || cfg.PeerSupervisor != "10.0.0.9:3263" {
		t.Errorf("%q, %q", cfg.SupervisorListen, cfg.PeerSupervisor)
	}
}
