package sim

import (
	"reflect"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Total sums the results of many histories.
type Total struct {
	Histories, Events, Operations int
	Unserved                      []uint64 // seeds of histories at whose end a node did not serve although no action of a person was due
	Digest                        uint64   // sum of those of the histories, whatever their order
	Faults                        map[string]int
	Marks                         [marks]uint64
	Stats                         pair.Stats
	Failed                        []Result
}

// Add counts a result in.
func (t *Total) Add(r Result) {
	if t.Faults == nil {
		t.Faults = map[string]int{}
	}
	t.Histories++
	t.Events += r.Events
	t.Digest += r.Digest
	if r.Unserved > 0 && r.Err == nil { // one that is ended by a violation has no such end
		t.Unserved = append(t.Unserved, r.Seed)
	}
	t.Operations += r.Operations
	for k, n := range r.Faults {
		t.Faults[k] += n
	}
	for i, n := range r.Marks {
		t.Marks[i] += uint64(n)
	}
	addStats(&t.Stats, &r.Stats)
	if r.Err != nil {
		t.Failed = append(t.Failed, r)
	}
}

// Branches are the rare ways through the protocol, with how often they were taken: the machine's
// own counters and the situations that the simulator looks for. One that no history takes is not
// tested, whatever else passes.
func (t *Total) Branches() map[string]uint64 {
	out := map[string]uint64{}
	v := reflect.ValueOf(t.Stats)
	for i := range v.NumField() {
		if f := v.Field(i); f.CanUint() {
			out["machine: "+v.Type().Field(i).Name] = f.Uint()
		}
	}
	for i, n := range t.Marks {
		out[markNames[i]] = n
	}
	return out
}

// Uncovered names the branches that were never taken, sorted. A history that is excused is not
// wanted.
func (t *Total) Uncovered() []string {
	skip := map[string]bool{markNames[markExcusedDisk]: true, "machine: ClockSteps": true}
	for _, m := range []mark{markTaken, markForked, markGhostServes, markStood, markUnansweredLone} { // of faults that come on request only
		skip[markNames[m]] = true
	}
	out := []string{}
	for name, n := range t.Branches() {
		if n == 0 && !skip[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// addStats sums the counters, whichever the machine has.
func addStats(to, from *pair.Stats) {
	t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for i := range t.NumField() {
		if x := t.Field(i); x.CanUint() {
			x.SetUint(x.Uint() + f.Field(i).Uint())
		}
	}
}
