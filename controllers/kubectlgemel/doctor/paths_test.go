package doctor

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// paths sets how many paths the first worker has to nodes a and b of the first pair, which the
// nodes' sessions confirm.
func paths(a, b int32, reason string, since time.Duration) func(*Objects) {
	return func(o *Objects) {
		h := &o.Hosts[0]
		w, t := &h.Status.Worker[0], &h.Status.Targets[0]
		w.Portals[0].Connected, w.Portals[1].Connected, w.Portals[1].LastError = a, b, "no session"
		t.Nodes[0].Sessions, t.Nodes[1].Sessions = a, b
		set(&h.Status.Conditions, v1alpha1.ConditionPathsComplete, false, reason, "node b of main-p0 (10.0.0.2:3260) has no session of the worker", since)
	}
}

// nodeDown stops node b of the first pair, which then does not say its portal.
func nodeDown(o *Objects) {
	pairIs(o, time.Hour, true, false, "node b", phase("Alone", ""), phase("Unknown", "the node has no pod"))
	o.Hosts[0].Status.Targets[0].Nodes[1] = v1alpha1.HostSession{Node: "b", Error: "connection refused"}
}

func whole(o *Objects) { o.Hosts[0] = healthy(6).Hosts[0] }

var pathCases = []trouble{
	{"none", "HostWithoutPath", Critical, "Host/worker-1", paths(0, 0, "HostRedundancyLost", time.Hour), map[string]func(*Objects){
		"gone": whole, "not for long": paths(0, 0, "HostRedundancyLost", 4*time.Minute), "one path": paths(1, 0, "HostRedundancyLost", time.Hour),
		"the pair is down": pairDownNow, "nothing is attached": func(o *Objects) { o.Hosts[0].Status.Worker[0].LUNs = 0 },
	}, []string{"no portal of main-p0", "portal 10.0.0.2:3260: no session", "docs/workers.md#what-to-do"}},
	{"one node is lost", "PathsIncomplete", Warning, "Host/worker-1", paths(1, 0, "HostRedundancyLost", time.Hour), map[string]func(*Objects){
		"gone": whole, "not for long": paths(1, 0, "HostRedundancyLost", 4*time.Minute), "the node is down": nodeDown,
		"no path": paths(0, 0, "HostRedundancyLost", time.Hour),
	}, []string{"no session on one node", "node b of main-p0"}},
	{"a path is missing", "PathsIncomplete", Warning, "Host/worker-1", func(o *Objects) {
		paths(1, 0, "PathsNotDiscovered", time.Hour)(o)
		o.Hosts[0].Status.Targets[0].Nodes[1].Sessions = 1
	},
		map[string]func(*Objects){"gone": whole}, []string{"a session on each node"}},
	{"the target has no session", "PathsIncomplete", Warning, "Host/worker-1", func(o *Objects) {
		paths(1, 1, "HostRedundancyLost", time.Hour)(o)
		o.Hosts[0].Status.Targets[0].Nodes[1].Sessions = 0
	},
		map[string]func(*Objects){"gone": whole, "the node is no member": func(o *Objects) {
			pairIs(o, time.Hour, true, false, "node b", phase("Alone", ""), phase("Joining", ""))
		}}, nil},
	{"wrong multipath.conf", "PathsNotAsked", Warning, "Host/worker-1", paths(1, 1, "NotAskedForTargetPortGroups", time.Hour), map[string]func(*Objects){
		"gone": whole, "not for long": paths(1, 1, "NotAskedForTargetPortGroups", 4*time.Minute),
	}, []string{"REPORT TARGET PORT GROUPS", "multipathd show config"}},
}

func TestPaths(t *testing.T) { check(t, pathCases) }

// The path to a node that is down is the pair's trouble, but another path is not.
func TestPathToTheOtherNode(t *testing.T) {
	o := healthy(6)
	paths(1, 0, "HostRedundancyLost", time.Hour)(o)
	nodeDown(o)
	o.Hosts[0].Status.Worker[1].Portals[0].Connected = 0
	list := Examine(o, now)
	if len(list) != 2 || list[0].Rule != "SingleCopy" || list[1].Rule != "PathsIncomplete" {
		t.Errorf("%+v", list)
	}
}
