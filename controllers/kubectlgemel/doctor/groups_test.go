package doctor

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func groupIs(ok bool, reason, message string, since time.Duration) func(*Objects) {
	return func(o *Objects) {
		set(&o.Groups[0].Status.Conditions, v1alpha1.ConditionReady, ok, reason, message, since)
	}
}

// ofGroup makes a snapshot a member, with its own condition.
func ofGroup(reason string) func(*Objects) {
	return func(o *Objects) {
		o.Snapshots[0].Spec.Group = o.Groups[0].Name
		snapshotIs(false, reason, "what it says", time.Hour)(o)
	}
}

var groupCases = []trouble{
	{"an old release", "GroupSnapshotNotReady", Warning, "LogicalUnitGroupSnapshot/group-00000", groupIs(false, "NotSupported", "pair main-p0: upgrade its nodes", time.Hour), map[string]func(*Objects){
		"gone": groupIs(true, "Ready", "", 0), "not for long": groupIs(false, "NotSupported", "", 4*time.Minute), "progress": groupIs(false, "Progressing", "", 29*time.Minute),
		"it is being deleted": func(o *Objects) { o.Groups[0].DeletionTimestamp = at(time.Minute) },
		"the pair is down": func(o *Objects) {
			o.Snapshots[0].Spec.Group = o.Groups[0].Name
			groupIs(false, "PairDown", "", time.Hour)(o)
			pairDownNow(o)
		},
	}, []string{"NotSupported: pair main-p0: upgrade its nodes", "kubectl describe lungroupsnap group-00000"}},
	{"an object is gone", "GroupSnapshotNotReady", Critical, "LogicalUnitGroupSnapshot/group-00000", groupIs(false, "Missing", "snap-00000 no longer exists", time.Hour),
		map[string]func(*Objects){"gone": groupIs(true, "Ready", "", 0)}, []string{"missing in part"}},
	{"members wait", "GroupSnapshotNotReady", Warning, "LogicalUnitGroupSnapshot/group-00000", func(o *Objects) {
		ofGroup("Progressing")(o)
		groupIs(false, "Progressing", "pair main-p0: the next attempt follows", time.Hour)(o)
	}, map[string]func(*Objects){"gone": func(o *Objects) { groupIs(true, "Ready", "", 0)(o); snapshotIs(true, "Ready", "", 0)(o) }}, []string{"the next attempt follows"}},
	{"a member has lost its data", "SnapshotNotReady", Critical, "LogicalUnitSnapshot/snap-00000", func(o *Objects) {
		ofGroup("Missing")(o)
		groupIs(false, "Missing", "member snap-00000: what it says", time.Hour)(o)
	}, map[string]func(*Objects){"gone": func(o *Objects) { groupIs(true, "Ready", "", 0)(o); snapshotIs(true, "Ready", "", 0)(o) }}, []string{"what it says"}},
}

func TestGroups(t *testing.T) { check(t, groupCases) }
