package chaos

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestPlanFollowsFromTheSeed(t *testing.T) {
	draw := func(seed uint64) (list []Episode) {
		p := newPlan(seed, Kinds)
		for range 300 {
			list = append(list, p.next())
		}
		return list
	}
	a := draw(5)
	if !reflect.DeepEqual(a, draw(5)) {
		t.Error("one seed, two plans")
	}
	if reflect.DeepEqual(a, draw(6)) {
		t.Error("two seeds, one plan")
	}
	seen, both, spoilt, nodes := map[Kind]int{}, 0, 0, map[int]int{}
	for _, e := range a {
		for _, f := range e.Faults {
			seen[f.Kind]++
			nodes[f.Node]++
			longest, ofBoth := 4*time.Second, f.Kind == ArbiterDown
			switch f.Kind {
			case Overload, StuckDisks, MemoryPressure:
				longest, ofBoth = 15*time.Second, true
			case HalfWrites:
				longest, ofBoth = 27*time.Second, true
			}
			if f.For <= 0 || f.For > longest || f.At < 0 || f.At > 2*time.Second || f.Node < 0 || f.Node > 2 || f.Node == 2 && !ofBoth {
				t.Errorf("%v", f)
			}
		}
		if len(e.Faults) > 1 {
			both++
		}
		for i, f := range e.Faults {
			if !slices.Contains(spoiling, f.Kind) {
				continue
			}
			if !e.Whole || !e.Patient {
				t.Errorf("the copy of one node is no good in an episode that begins or ends with a pair that is not in sync: %v", e)
			}
			if len(e.Faults) > 1 && !slices.Contains(beside, e.Faults[1-i].Kind) {
				t.Errorf("the copy of one node is no good, and the other node may not keep its own: %v", e)
			}
			spoilt++
		}
	}
	if spoilt < 20 {
		t.Errorf("%d episodes with disks that are broken or replaced", spoilt)
	}
	for _, k := range Kinds {
		if seen[k] < 5 {
			t.Errorf("%s comes %d times in 300 episodes", k, seen[k])
		}
	}
	if both < 20 || nodes[0] < 20 || nodes[1] < 20 {
		t.Errorf("%d episodes of two faults, by node %v", both, nodes)
	}
}

// Whatever may be beside a disk that fails leaves the other node what it is.
func TestGoTogether(t *testing.T) {
	for _, p := range [][2]Kind{{Kill, Stop}, {WriteErrors, Snapshot}, {Transfer, ReplacedDisk}, {DamageRunning, Snapshot}, {DamageAlone, Transfer}} {
		if !goTogether(p[0], p[1]) || !goTogether(p[1], p[0]) {
			t.Errorf("%v are kept apart", p)
		}
	}
	for _, p := range [][2]Kind{{Kill, Kill}, {Kill, ReplacedDisk}, {ReadErrors, StuckDisk}, {WriteErrors, ReplacedDisk}, {FullPool, PartitionLink}, {DamageRunning, Kill},
		{DamageAlone, Snapshot}, {DamageAlone, ArbiterDown}, {DamageStopped, DamageAlone}} {
		if goTogether(p[0], p[1]) || goTogether(p[1], p[0]) {
			t.Errorf("%v may cost both copies", p)
		}
	}
	for _, k := range beside {
		if slices.Contains(ending, k) || slices.Contains(spoiling, k) {
			t.Errorf("%s beside a copy that is no good", k)
		}
	}
}

func TestParseKinds(t *testing.T) {
	if k, err := ParseKinds(""); err != nil || len(k) != len(Kinds) {
		t.Error(k, err)
	}
	if k, err := ParseKinds("kill, slow link"); err != nil || !reflect.DeepEqual(k, []Kind{Kill, SlowLink}) {
		t.Error(k, err)
	}
	if k, err := ParseKinds("damage"); err != nil || !reflect.DeepEqual(k, damage) {
		t.Error(k, err)
	}
	if _, err := ParseKinds("kil"); err == nil {
		t.Error("a kind that is none")
	}
}
