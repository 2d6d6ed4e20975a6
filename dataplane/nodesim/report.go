package nodesim

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Report is of many histories.
type Report struct {
	Seeds         int            `json:"histories"`
	Base          uint64         `json:"base"`
	Seconds       float64        `json:"seconds"`
	PerSecond     float64        `json:"histories_per_second"`
	FakeSeconds   float64        `json:"simulated_seconds"`
	Operations    int            `json:"operations"`
	Violations    int            `json:"violations"` // histories in which something that is promised did not hold
	Unserved      int            `json:"unserved_after_faults"`
	Failed        []uint64       `json:"failed_seeds"`
	First         string         `json:"first_violation"`
	Shapes        map[string]int `json:"shapes"`
	Faults        map[string]int `json:"faults"`
	Branches      map[string]int `json:"branches"`
	NeverFaults   []string       `json:"uncovered_faults"`
	NeverBranches []string       `json:"uncovered_branches"`
}

// branches that histories are to reach.
var branches = []string{"a node left", "a host took another path", "a fence was checked", "a host was unmapped", "a session dropped", "ABORT TASK", "ABORT TASK SET", "CLEAR", "CLEAR TASK SET",
	"LUN RESET", "MODE SELECT", "PREEMPT", "PREEMPT AND ABORT", "REGISTER", "RELEASE", "RESERVE", "RESERVE(6)", "TARGET RESET"}

func newReport(base uint64) *Report {
	return &Report{Base: base, Failed: []uint64{}, Shapes: map[string]int{}, Faults: map[string]int{}, Branches: map[string]int{}}
}

// add counts one history. Which seed failed first depends on the order of the calls.
func (r *Report) add(x *Result) {
	r.Seeds++
	r.FakeSeconds += x.Fake.Seconds()
	r.Operations += x.Operations
	r.Shapes[x.Shape]++
	for k, n := range x.Faults {
		r.Faults[k] += n
	}
	for k, n := range x.Branches {
		r.Branches[k] += n
	}
	if x.Unserved {
		r.Unserved++
	}
	if len(x.Violations) > 0 {
		r.Violations++
		r.Failed = append(r.Failed, x.Seed)
		if r.First == "" {
			r.First = fmt.Sprintf("seed %d %s", x.Seed, x.Violations[0])
		}
	}
}

func (r *Report) end(took time.Duration) {
	r.Seconds = took.Seconds()
	r.PerSecond = float64(r.Seeds) / r.Seconds
	for _, f := range faults {
		if r.Faults[f.name] == 0 {
			r.NeverFaults = append(r.NeverFaults, f.name)
		}
	}
	for _, b := range branches {
		if r.Branches[b] == 0 {
			r.NeverBranches = append(r.NeverBranches, b)
		}
	}
	for _, what := range waits {
		if b := stoppedFor(what); r.Branches[b] == 0 {
			r.NeverBranches = append(r.NeverBranches, b)
		}
	}
}

func (r *Report) print(w io.Writer) {
	fmt.Fprintf(w, "%d histories of %.0f simulated seconds in %.0f s, %.2f a second; %d operations, %d violations, %d unserved after faults\n",
		r.Seeds, r.FakeSeconds, r.Seconds, r.PerSecond, r.Operations, r.Violations, r.Unserved)
	for _, m := range []map[string]int{r.Shapes, r.Faults, r.Branches} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(w, "  %6d  %s\n", m[k], k)
		}
		fmt.Fprintln(w)
	}
	for _, k := range slices.Concat(r.NeverFaults, r.NeverBranches) {
		fmt.Fprintf(w, "  never: %s\n", k)
	}
}
