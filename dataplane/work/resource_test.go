package work

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"
)

// at places LUNs: each is on a volume of its name's first letter.
func at(owner map[string]int) Place {
	return func(id string) (int, string, bool) {
		n, ok := owner[id]
		return n, id[:1], ok
	}
}

func disks(busy map[string]float64, luns map[string]float64) Report {
	r := Report{CPUs: 1, CPU: 0.1, Disks: map[string]DiskUse{}, LUNs: map[string]LUN{}}
	for v, b := range busy {
		r.Disks[v] = DiskUse{Busy: b, Wait: 0.01}
	}
	for id, x := range luns {
		r.LUNs[id] = LUN{DiskFast: x, DiskSlow: x}
	}
	return r
}

// Reads count at the owner of each LUN, for the disk of its volume only; what a disk does beside
// stays where it is.
func TestDisksOfTwoVolumes(t *testing.T) {
	r := [2]Report{disks(map[string]float64{"x": 0.9, "y": 0.5}, map[string]float64{"x0": 0.4, "x1": 0.3, "y0": 0.5}),
		disks(map[string]float64{"x": 0.2, "y": 0.1}, nil)}
	owner := map[string]int{"x0": 0, "x1": 0, "y0": 0}
	all := Resources(r, at(owner))
	if len(all) != 3 || all[0].Volume != "" || all[1].Volume != "x" || all[2].Volume != "y" {
		t.Fatalf("%+v", all)
	}
	near(t, "x at a", all[1].Use[0], 0.9)
	near(t, "y at a", all[2].Use[0], 0.5)
	near(t, "x1", all[1].LUNs["x1"].Slow, 0.3)
	if ids := slices.Sorted(maps.Keys(all[1].LUNs)); !slices.Equal(ids, []string{"x0", "x1"}) {
		t.Errorf("x has %v", ids)
	}
	owner["x1"] = 1
	all = Resources(r, at(owner))
	near(t, "x at a afterwards", all[1].Use[0], 0.6)
	near(t, "x at b afterwards", all[1].Use[1], 0.5)
	near(t, "y at a afterwards", all[2].Use[0], 0.5)
	delete(owner, "x0") // it was deleted
	near(t, "x at a without it", Resources(r, at(owner))[1].Use[0], 0.6)
}

// A disk that only one node knows is no resource. A node of a release before sends no disks.
func TestUnknownDisks(t *testing.T) {
	r := [2]Report{disks(map[string]float64{"x": 0.9, "y": 0.9}, map[string]float64{"x0": 0.4}), disks(map[string]float64{"y": 0.1}, nil)}
	if all := Resources(r, at(map[string]int{"x0": 0})); len(all) != 2 || all[1].Volume != "y" {
		t.Errorf("%+v", all)
	}
	r[1] = Report{}
	if err := json.Unmarshal([]byte(`{"cpus":2,"cpu":0.5,"luns":{"x0":{"fast":0.1,"slow":0.1,"full":0.1,"mirror":0,"read":0}},"full":0.1,"mirror":0,"background":false}`), &r[1]); err != nil {
		t.Fatal(err)
	}
	if all := Resources(r, at(map[string]int{"x0": 0})); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func use(volume string, a, b, wait float64) Resource {
	return Resource{Volume: volume, Use: [2]float64{a, b}, Wait: [2]float64{wait, 0}}
}

// The resource that is nearest to its capacity decides, unless nothing is to be gained of it.
func TestScarcerResourceDecides(t *testing.T) {
	for name, c := range map[string]struct {
		all  []Resource
		want int
	}{
		"CPU":                 {[]Resource{use("", 0.8, 0.2, 0), use("x", 0.6, 0.1, 0.01)}, 0},
		"a disk":              {[]Resource{use("", 0.3, 0.2, 0), use("x", 0.6, 0.1, 0.01)}, 1},
		"the other disk":      {[]Resource{use("", 0.3, 0.2, 0), use("x", 0.6, 0.1, 0.01), use("y", 0.1, 0.7, 0.01)}, 2},
		"both CPUs are full":  {[]Resource{use("", 1, 0.98, 0), use("x", 0.6, 0.1, 0.01)}, 1},
		"both disks are full": {[]Resource{use("", 0.7, 0.1, 0), use("x", 1, 1, 0.01)}, 0},
		"little use":          {[]Resource{use("", 0.1, 0.1, 0), use("x", 0.35, 0.1, 0.01)}, 0},
		"short reads":         {[]Resource{use("", 0.6, 0.1, 0), use("x", 1, 0.1, 200e-6)}, 0},
		"no disk":             {[]Resource{use("", 0.6, 0.1, 0)}, 0},
	} {
		if got, changed := new(Choice).Choose(1, c.all); got != c.want || changed != (got > 0) {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// Two resources that are about equally scarce do not take turns, and one that is scarcer for a
// while changes the resource once in a slow window at most.
func TestResourcesDoNotFlap(t *testing.T) {
	var c Choice
	now, changes, last := int64(time.Hour), 0, 0
	step := func(cpu, disk float64, wait float64) int {
		now += int64(2 * time.Second)
		got, changed := c.Choose(now, []Resource{use("", cpu, 0.2, 0), use("x", disk, 0.2, wait)})
		if changed != (got != last) {
			t.Fatalf("%d after %d: changed %v", got, last, changed)
		}
		if changed {
			changes++
		}
		last = got
		return got
	}
	for i := range 3600 { // two hours
		step(0.6+0.04*float64(i%2), 0.62+0.04*float64((i+1)%2), 0.01)
	}
	if changes > 1 {
		t.Errorf("%d changes of resources that are about equal", changes)
	}
	changes = 0
	for i := range 3600 { // each is by far the scarcer one for a minute
		hi, lo := 0.9, 0.5
		if i/30%2 == 0 {
			hi, lo = lo, hi
		}
		step(hi, lo, 0.01)
	}
	if changes > 24 {
		t.Errorf("%d changes in two hours", changes)
	}
	c, changes, last = Choice{}, 0, 0
	for i := range 3600 { // reads that take about as long as they have to
		step(0.45, 0.9, waitFrom*(0.8+0.4*float64(i%2)))
	}
	if changes > 1 {
		t.Errorf("%d changes by the time of a read", changes)
	}
	if step(0.99, 0.8, 0.01) != 0 {
		t.Error("CPUs that are scarcer by far do not count")
	}
	if got, _ := c.Choose(now, []Resource{use("", 0.1, 0.1, 0)}); got != 0 { // its volume is gone
		t.Error(got)
	}
}

// A disk that is not known any more does not stand.
func TestChoiceOfADiskThatIsGone(t *testing.T) {
	var c Choice
	if got, _ := c.Choose(1, []Resource{use("", 0.1, 0.1, 0), use("x", 0.9, 0.1, 0.01)}); got != 1 {
		t.Fatal(got)
	}
	if got, _ := c.Choose(2, []Resource{use("", 0.1, 0.1, 0), use("y", 0.9, 0.1, 0.01)}); got != 1 {
		t.Fatal(got)
	}
}

// A LUN that would use up the CPUs of the other node does not go there for the sake of a disk.
func TestCrowds(t *testing.T) {
	cpu, x, y := use("", 0.1, 0.7, 0), use("x", 0.9, 0.1, 0.01), use("y", 0.1, 0.8, 0.01)
	cpu.LUNs = map[string]Share{"x0": {Slow: 0.3}, "x1": {Slow: 0.1}, "x2": {Slow: 0.01}}
	all := []Resource{cpu, x, y}
	for id, want := range map[string]bool{"x0": true, "x1": false, "x2": false, "none": false} {
		if got := Crowds(all, 1, id, 1); got != want {
			t.Errorf("%s: %v", id, got)
		}
	}
	if Crowds(all, 0, "x0", 1) {
		t.Error("the chosen resource itself crowds nothing")
	}
}
