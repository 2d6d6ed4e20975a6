package doctor

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func awayWaits(text string) func(*Objects) {
	return func(o *Objects) {
		o.Pairs[0].Status.Ownership = &v1alpha1.OwnershipStatus{Away: 1, WaitsFor: text,
			Moves: []v1alpha1.OwnershipMove{{UUID: uuid(0), From: "a", To: "b", Reason: "Drain", Message: "node a restarts", Time: ago(3 * time.Hour)}}}
		o.LUNs[0].Status.Owner = "b"
	}
}

// waitsIn is awayWaits in a mode of balancing.
func waitsIn(mode, text string) func(*Objects) {
	return func(o *Objects) {
		awayWaits(text)(o)
		o.Pairs[0].Status.Ownership.Mode = mode
	}
}

func drainedBy(reason string, since time.Duration) func(*Objects) {
	return func(o *Objects) {
		awayWaits("node a is drained")(o)
		s := o.Pairs[0].Status.Ownership
		s.DrainedNode, s.DrainReason, s.Moves[0].Time = "a", reason, ago(since)
	}
}

var ownershipCases = []trouble{
	{"a host", "LUNsAway", Warning, "TargetPair/main-p0", awayWaits("LUN u: host h is not logged in at node a"), map[string]func(*Objects){
		"gone":          func(o *Objects) { o.LUNs[0].Status.Owner, o.Pairs[0].Status.Ownership.Away = "a", 0 },
		"a short while": func(o *Objects) { o.Pairs[0].Status.Ownership.Moves[0].Time = ago(59 * time.Minute) },
		"a preferred node that was changed just now": func(o *Objects) { writtenBefore(&o.LUNs[0].ObjectMeta, "", 59*time.Minute) },
		"not in sync for long": func(o *Objects) {
			set(&o.Pairs[0].Status.Conditions, v1alpha1.ConditionInSync, true, "Ready", "", 59*time.Minute)
		},
		"no home":                         func(o *Objects) { o.LUNs[0].Status.PreferredNode = "" },
		"no owner":                        func(o *Objects) { o.LUNs[0].Status.Owner = "" },
		"the pair says that none is away": func(o *Objects) { o.Pairs[0].Status.Ownership.Away = 0 },
		"drained":                         drainedBy("new network card", time.Hour),
		"it only looks":                   waitsIn("Observe", "balancing only observes: no LUN moves by itself"),
	}, []string{"host h is not logged in at node a", "lun-00000 (node b, home is a)", "1 of 3 LUNs are away", "the last move was from node a to node b"}},
	{"off", "BalancingOff", Note, "TargetPair/main-p0", waitsIn("Off", "balancing is off: no LUN moves by itself"), map[string]func(*Objects){
		"gone":            func(o *Objects) { o.LUNs[0].Status.Owner, o.Pairs[0].Status.Ownership.Away = "a", 0 },
		"auto":            waitsIn("Auto", "balancing is off"), // the mode counts, not the words
		"no mode is said": awayWaits("LUN u: host h is not logged in at node a"),
	}, []string{"balancing is off"}},
	{"observe", "BalancingOff", Note, "TargetPair/main-p0", waitsIn("Observe", "balancing only observes: no LUN moves by itself"), map[string]func(*Objects){
		"gone": func(o *Objects) { o.LUNs[0].Status.Owner, o.Pairs[0].Status.Ownership.Away = "a", 0 },
	}, []string{"only observes"}},
	{"a person", "DrainStands", Note, "TargetPair/main-p0", drainedBy("new network card", 3*time.Hour), map[string]func(*Objects){
		"gone":         func(o *Objects) { o.Pairs[0].Status.Ownership.DrainedNode = "" },
		"not for long": drainedBy("new network card", 119*time.Minute),
		"an earlier drain": func(o *Objects) {
			s := o.Pairs[0].Status.Ownership
			s.Moves = append(s.Moves, v1alpha1.OwnershipMove{From: "b", To: "a", Reason: "FailBack", Time: ago(time.Hour)})
		},
	}, []string{"a person drained the node: new network card", "since 2026-11-25T09:00:00Z (3h) or longer", "gemel-target drain a --end"}},
	{"no LUN has moved", "DrainStands", Note, "TargetPair/main-p0", func(o *Objects) {
		o.Pairs[0].Status.Ownership.DrainedNode = "a"
		writtenBefore(&o.Pairs[0].ObjectMeta, "status", 3*time.Hour)
	}, map[string]func(*Objects){"not for long": func(o *Objects) { writtenBefore(&o.Pairs[0].ObjectMeta, "status", time.Hour) }}, nil},
	{"the operator", "DrainStands", Warning, "TargetPair/main-p0", drainedBy("gemel-operator: node a is restarted", 3*time.Hour),
		map[string]func(*Objects){"gone": func(o *Objects) { o.Pairs[0].Status.Ownership.DrainedNode = "" }}, []string{"the operator rolls the pair", "condition UpToDate: kubectl describe targetpair main-p0"}},
}

func TestOwnership(t *testing.T) { check(t, ownershipCases) }

// A move that was only observed is no move.
func TestDrainedSince(t *testing.T) {
	o := &v1alpha1.OwnershipStatus{DrainedNode: "a", Moves: []v1alpha1.OwnershipMove{{From: "a", To: "b", Reason: "Drain", Time: ago(3 * time.Hour)}, {From: "b", To: "a", Observed: true, Time: ago(time.Hour)}}}
	if got := drainedSince(o); !got.Equal(at(3 * time.Hour)) {
		t.Error(got)
	}
	o.Moves = append([]v1alpha1.OwnershipMove{{From: "a", To: "b", Reason: "Connectivity", Time: ago(5 * time.Hour)}}, o.Moves...)
	if got := drainedSince(o); !got.Equal(at(3 * time.Hour)) {
		t.Error(got)
	}
	if got := drainedSince(&v1alpha1.OwnershipStatus{DrainedNode: "a"}); got != (metav1.Time{}) {
		t.Error(got)
	}
}
