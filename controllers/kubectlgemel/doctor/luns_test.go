package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func lunIs(kind string, ok bool, reason, message string, since time.Duration) func(*Objects) {
	return func(o *Objects) { set(&o.LUNs[0].Status.Conditions, kind, ok, reason, message, since) }
}

func snapshotIs(ok bool, reason, message string, since time.Duration) func(*Objects) {
	return func(o *Objects) {
		set(&o.Snapshots[0].Status.Conditions, v1alpha1.ConditionReady, ok, reason, message, since)
	}
}

func deleted(o *Objects) {
	o.LUNs[0].DeletionTimestamp, o.Snapshots[0].DeletionTimestamp = at(time.Minute), at(time.Minute)
}

func pairDownNow(o *Objects) {
	pairIs(o, time.Hour, false, false, "no node serves", phase("Unknown", ""), phase("Unknown", ""))
}

var lunCases = []trouble{
	{"no room", "LUNNotReady", Warning, "LogicalUnit/lun-00000", lunIs("Ready", false, "NoRoom", "no pair has room for lun-00000", time.Hour), map[string]func(*Objects){
		"gone": lunIs("Ready", true, "Ready", "", 0), "not for long": lunIs("Ready", false, "NoRoom", "", 4*time.Minute),
		"progress": lunIs("Ready", false, "Progressing", "", 29*time.Minute), "it is being deleted": deleted,
	}, []string{"NoRoom: no pair has room for NAME", "add a pair", "kubectl describe lun lun-00000"}},
	{"its data is gone", "LUNNotReady", Critical, "LogicalUnit/lun-00000", lunIs("Ready", false, "Missing", "pair main-p0 no longer has LUN", time.Hour),
		map[string]func(*Objects){"gone": lunIs("Ready", true, "Ready", "", 0)}, []string{"the data of the LogicalUnit is missing", "from a backup"}},
	{"it ends processes", "LUNNotReady", Critical, "LogicalUnit/lun-00000", lunIs("Ready", false, "Quarantined", "pair main-p0 executes no command", time.Hour),
		map[string]func(*Objects){"gone": lunIs("Ready", true, "Ready", "", 0)}, []string{"its commands ended processes", "docs/operations.md#a-lun-that-ends-processes"}},
	{"the pair does not answer", "LUNNotReady", Warning, "LogicalUnit/lun-00000", func(o *Objects) {
		lunIs("Ready", false, "PairDown", "pair main-p0: no node answers", time.Hour)(o)
		lunIs("Published", false, "PairDown", "pair main-p0: no node answers", time.Hour)(o)
	}, map[string]func(*Objects){"the pair is down": pairDownNow, "gone": lunIs("Ready", true, "Ready", "", 0)}, []string{"PairDown"}},
	{"a host", "LUNNotPublished", Warning, "LogicalUnit/lun-00000", lunIs("Published", false, "NotEnrolled", "map host iqn.2026-11.storage.gemel:node.worker-1: no Host object", time.Hour), map[string]func(*Objects){
		"gone": lunIs("Published", true, "Ready", "", 0), "not for long": lunIs("Published", false, "NotEnrolled", "", 4*time.Minute), "it is being deleted": deleted,
		"the pair is down": func(o *Objects) { lunIs("Published", false, "NotConfirmed", "", time.Hour)(o); pairDownNow(o) },
	}, []string{"NotEnrolled: map host HOST: no Host object", "map host iqn.2026-11.storage.gemel:node.worker-1", "docs/kubernetes.md#security"}},
	{"its source is gone", "SnapshotNotReady", Warning, "LogicalUnitSnapshot/snap-00000", snapshotIs(false, "NoSource", "LogicalUnit lun-00000, the source of this snapshot, does not exist", time.Hour), map[string]func(*Objects){
		"gone": snapshotIs(true, "Ready", "", 0), "not for long": snapshotIs(false, "NoSource", "", 4*time.Minute), "progress": snapshotIs(false, "Progressing", "", 29*time.Minute),
		"it is being deleted": deleted, "the pair is down": func(o *Objects) { snapshotIs(false, "PairDown", "", time.Hour)(o); pairDownNow(o) },
	}, []string{"LogicalUnit SOURCE, the source"}},
	{"its data is gone", "SnapshotNotReady", Critical, "LogicalUnitSnapshot/snap-00000", snapshotIs(false, "Missing", "pair main-p0 no longer has it", time.Hour),
		map[string]func(*Objects){"gone": snapshotIs(true, "Ready", "", 0)}, []string{"the data of the LogicalUnitSnapshot is missing"}},
}

func TestLUNs(t *testing.T) { check(t, lunCases) }

// Many LUNs that fail for one cause are one finding; another cause is another one.
func TestLUNsOfOneCauseAreOneFinding(t *testing.T) {
	o := healthy(1000)
	for i := range 500 {
		lu := &o.LUNs[i]
		set(&lu.Status.Conditions, v1alpha1.ConditionReady, false, "NoRoom", fmt.Sprintf("no pair has room for %s (%s)", lu.Name, lu.Spec.Placement.UUID), time.Hour)
	}
	set(&o.LUNs[700].Status.Conditions, v1alpha1.ConditionReady, false, "Invalid", "spec.pool: there is no pool x", time.Hour)
	list := Examine(o, now)
	if len(list) != 2 {
		t.Fatalf("%d: %+v", len(list), list)
	}
	f := list[0]
	if f.Object != "LogicalUnit/lun-00000" || f.Count != 500 || strings.Join(f.Others, " ") != "lun-00001 lun-00002 lun-00003 lun-00004" || f.Cause != "NoRoom: no pair has room for NAME (UUID)" ||
		len(f.Evidence) != maxEvidence || !strings.HasPrefix(f.Evidence[1], "lun-00001: Ready is False") || f.Procedure[0] != "kubectl describe lun LUN" {
		t.Errorf("%+v", f)
	}
	if list[1].Object != "LogicalUnit/lun-00700" || list[1].Count != 1 {
		t.Errorf("%+v", list[1])
	}
}

// A LUN that is not Ready for one reason and not published for another has two findings.
func TestLUNWithTwoReasons(t *testing.T) {
	o := healthy(6)
	lunIs("Ready", false, "NoRoom", "no room to grow", time.Hour)(o)
	lunIs("Published", false, "NotEnrolled", "no Host", time.Hour)(o)
	if list := Examine(o, now); len(list) != 2 {
		t.Errorf("%+v", list)
	}
}
