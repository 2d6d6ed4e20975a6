package chaos

import (
	"reflect"
	"testing"
	"time"
)

func TestPlanFollowsFromTheSeed(t *testing.T) {
	draw := func(seed uint64) (list []Episode) {
		p := newPlan(seed, Kinds)
		for range 200 {
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
	seen, both, nodes := map[Kind]int{}, 0, map[int]int{}
	for _, e := range a {
		for _, f := range e.Faults {
			seen[f.Kind]++
			nodes[f.Node]++
			longest, ofBoth := 4*time.Second, f.Kind == ArbiterDown
			if f.Kind == Overload || f.Kind == StuckDisks {
				longest, ofBoth = 15*time.Second, true
			}
			if f.For <= 0 || f.For > longest || f.At < 0 || f.At > 2*time.Second || f.Node < 0 || f.Node > 2 || f.Node == 2 && !ofBoth {
				t.Errorf("%v", f)
			}
		}
		if len(e.Faults) > 1 {
			both++
		}
	}
	for _, k := range Kinds {
		if seen[k] < 5 {
			t.Errorf("%s comes %d times in 200 episodes", k, seen[k])
		}
	}
	if both < 20 || nodes[0] < 20 || nodes[1] < 20 {
		t.Errorf("%d episodes of two faults, by node %v", both, nodes)
	}
}

func TestParseKinds(t *testing.T) {
	if k, err := ParseKinds(""); err != nil || len(k) != len(Kinds) {
		t.Error(k, err)
	}
	if k, err := ParseKinds("kill, slow link"); err != nil || !reflect.DeepEqual(k, []Kind{Kill, SlowLink}) {
		t.Error(k, err)
	}
	if _, err := ParseKinds("kil"); err == nil {
		t.Error("a kind that is none")
	}
}
