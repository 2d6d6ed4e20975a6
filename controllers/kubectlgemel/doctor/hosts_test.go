package doctor

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func hostIs(kind string, ok bool, reason, message string, since time.Duration) func(*Objects) {
	return func(o *Objects) { set(&o.Hosts[0].Status.Conditions, kind, ok, reason, message, since) }
}

// asked says when workers asked for target port groups last.
func asked(d time.Duration) func(*Objects) {
	return func(o *Objects) {
		for i := range o.Hosts {
			for j := range o.Hosts[i].Status.Targets {
				for k := range o.Hosts[i].Status.Targets[j].Nodes {
					o.Hosts[i].Status.Targets[j].Nodes[k].LastRTPG = at(d)
				}
			}
		}
	}
}

var hostCases = []trouble{
	{"it cannot attach", "HostNotReady", Warning, "Host/worker-1", hostIs("Ready", false, "NotSupported", "multipathd does not run", time.Hour), map[string]func(*Objects){
		"gone": hostIs("Ready", true, "Ready", "", 0), "not for long": hostIs("Ready", false, "NotSupported", "", 4*time.Minute),
	}, []string{"multipathd does not run", "kubectl describe host worker-1"}},
	{"cloned", "HostNameTwice", Warning, "Host/worker-2", func(o *Objects) { o.Hosts[1].Spec.IQN = "IQN" + o.Hosts[0].Spec.IQN[3:] },
		map[string]func(*Objects){"gone": func(o *Objects) { o.Hosts[1].Spec.IQN += "x" }}, []string{"Host worker-1 has", "machine-id"}},
	{"it does not run", "OperatorSilent", Warning, "Host/worker-1", asked(2 * time.Hour), map[string]func(*Objects){
		"gone":                   asked(10 * time.Minute),
		"the workers do not ask": hostIs("PathsComplete", false, v1alpha1.ReasonPathUnasked, "", time.Hour),
	}, []string{"2026-11-25T10:00:00Z (120m)", "component=operator"}},
}

func TestHosts(t *testing.T) { check(t, hostCases) }
