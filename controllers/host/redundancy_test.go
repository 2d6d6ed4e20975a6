package host

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// paths are those of a worker with three LUNs, and the sessions that both nodes report; -1: the
// node does not answer.
func paths(a, b int32, sessionsA, sessionsB int32) ([]v1alpha1.HostPaths, []v1alpha1.HostSessions) {
	node := func(name, portal string, n int32) v1alpha1.HostSession {
		if n < 0 {
			return v1alpha1.HostSession{Node: name, Error: "connection refused"}
		}
		return v1alpha1.HostSession{Node: name, Portal: portal, Sessions: n}
	}
	return []v1alpha1.HostPaths{{Target: target, LUNs: 3, Portals: []v1alpha1.HostPortal{{Portal: portalA, Connected: a}, {Portal: portalB, Connected: b}}}},
		[]v1alpha1.HostSessions{{Target: target, Pair: "main-p0", Nodes: []v1alpha1.HostSession{node("a", portalA, sessionsA), node("b", portalB, sessionsB)}}}
}

func pairIs(phaseB string) []v1alpha1.TargetPair {
	p := v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "main-p0"}}
	p.Status.Nodes = []v1alpha1.NodeStatus{{Name: "a", Phase: "InSync"}, {Name: "b", Phase: phaseB}}
	return []v1alpha1.TargetPair{p}
}

func TestJudgeTellsTheWorkersTroubleFromThePairs(t *testing.T) {
	for _, c := range []struct {
		name           string
		a, b           int32
		onA, onB       int32
		phase          string
		withoutPortalB bool
		want           string
	}{
		{"whole", 3, 3, 1, 1, "InSync", false, "Complete"},
		{"no session", 3, 0, 1, 0, "InSync", false, "Lost"},
		{"a session, and too few paths", 3, 2, 1, 1, "InSync", false, "Lost"},
		{"the worker does not know yet", 3, 3, 1, 0, "InSync", false, "Lost"},
		{"the node joins", 3, 0, 1, 0, "Joining", false, "NodeAway"},
		{"the node does not answer", 3, 0, 1, -1, "Unknown", false, "NodeAway"},
		{"only the operator does not reach the node", 3, 3, 1, -1, "Unknown", false, "Complete"},
		{"the node joins, and a path to the other one is missing", 2, 0, 1, 0, "Joining", false, "Lost"},
		{"no path at all", 0, 0, 0, 0, "InSync", false, "Lost"},
		{"a portal that the worker does not use", 3, 0, 1, 0, "InSync", true, "Lost"},
		{"a portal that the worker does not use, of a node that joins", 3, 0, 1, 0, "Joining", true, "NodeAway"},
	} {
		w, seen := paths(c.a, c.b, c.onA, c.onB)
		if c.withoutPortalB {
			w[0].Portals = w[0].Portals[:1]
		}
		if got, why := judge(w[0], seen[0], pairIs(c.phase)); got != c.want || (why == "") != (got == "Complete") {
			t.Errorf("%s: %s %s", c.name, got, why)
		}
	}
	w, seen := paths(3, 0, 1, 0)
	seen[0].Pair = ""
	if got, _ := judge(w[0], seen[0], pairIs("Joining")); got != "Lost" {
		t.Errorf("no such pair: %s", got)
	}
}

// Each change is told once, after its time, whichever operator looks; the state is in the object.
func TestRedundancyChangesOnceAndAfterItsTime(t *testing.T) {
	h := &v1alpha1.Host{}
	now := start
	type told = []string
	for _, s := range []struct {
		name  string
		after time.Duration // since the step before
		b     int32         // paths and sessions of node b
		phase string
		want  told
		state string
		again time.Duration
	}{
		{"the first look is no news", 0, 1, "InSync", nil, "Complete", 0},
		{"a path is gone", time.Second, 0, "InSync", nil, "Complete", settle},
		{"and back: a flap", 14 * time.Second, 1, "InSync", nil, "Complete", 0},
		{"gone again", time.Second, 0, "InSync", nil, "Complete", settle},
		{"for long", settle, 0, "InSync", told{"Lost"}, "Lost", 0},
		{"nothing new", time.Minute, 0, "InSync", nil, "Lost", 0},
		{"the node goes away too", time.Minute, 0, "Joining", nil, "Lost", 0},
		{"back", time.Minute, 1, "InSync", told{"Complete"}, "Complete", 0},
		{"nothing new", time.Minute, 1, "InSync", nil, "Complete", 0},
		{"the node restarts; its pair does not know yet", time.Second, 0, "InSync", nil, "Complete", settle},
		{"the pair knows", settle, 0, "Joining", told{"NodeAway"}, "NodeAway", 0},
		{"nothing new", time.Hour, 0, "Joining", nil, "NodeAway", 0},
		{"the node serves, the worker is not there yet", time.Minute, 0, "InSync", nil, "NodeAway", settleBack},
		{"the worker does not come", settleBack, 0, "InSync", told{"Lost"}, "Lost", 0},
		{"it comes", time.Second, 1, "InSync", told{"Complete"}, "Complete", 0},
	} {
		now = now.Add(s.after)
		w, seen := paths(3, 3*s.b, 1, s.b)
		h.Status.Worker = w
		list, again := redundancy(h, seen, pairIs(s.phase), now)
		var got told
		for _, c := range list {
			if got = append(got, c.to); c.pair != "main-p0" || (c.why == "") != (c.to == "Complete") {
				t.Errorf("%s: %+v", s.name, c)
			}
		}
		if !equality.Semantic.DeepEqual(got, s.want) || seen[0].Redundancy != s.state || again != s.again || (seen[0].PendingSince != nil) != (again > 0) {
			t.Errorf("%s: told %v, %+v, again after %v", s.name, got, seen[0], again)
		}
		h.Status.Targets = seen
	}
}

func TestLastMovesAndCounts(t *testing.T) {
	lu := func(name, pair, owner, home string, at ...int64) *v1alpha1.LogicalUnit {
		x := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: pair}}}
		x.Status.Owner, x.Status.PreferredNode = owner, home
		for _, s := range at {
			x.Status.Moves = append(x.Status.Moves, v1alpha1.LogicalUnitMove{From: "a", To: "b", Time: metav1.Unix(s, 0)})
		}
		return x
	}
	luns := []*v1alpha1.LogicalUnit{lu("one", "main-p0", "a", "a", 1, 5), lu("two", "main-p0", "b", "a", 3, 4, 6), lu("three", "main-p1", "a", "a"), {}}
	var names []string
	for _, m := range lastMoves(luns) {
		names = append(names, m.LogicalUnit)
	}
	if got := strings.Join(names, " "); got != "two two one two" {
		t.Error(got)
	}
	_, seen := paths(3, 3, 1, 1)
	count(seen, luns)
	if a, b := seen[0].Nodes[0], seen[0].Nodes[1]; a.Owned != 1 || a.Home != 2 || b.Owned != 1 || b.Home != 0 {
		t.Errorf("%+v %+v", a, b)
	}
}
