package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/sim"
)

// report is the content of the file of results.
type report struct {
	Seeds       int               `json:"seeds"`
	Base        uint64            `json:"base"`
	Violations  int               `json:"violations"`
	FailedSeeds []uint64          `json:"failed_seeds"`
	Unserved    int               `json:"unserved_after_faults"` // histories without a violation that end with a node that does not serve, in a case for which docs/operations.md names no step of an administrator
	UnservedAt  []uint64          `json:"unserved_seeds"`
	First       string            `json:"first_violation,omitempty"`
	Events      int               `json:"events"`
	Operations  int               `json:"operations"`
	Digest      string            `json:"digest"` // the same for the same seeds as long as no behaviour changes
	PerSecond   float64           `json:"histories_per_second"`
	Faults      map[string]int    `json:"faults"`
	Answers     map[string]int    `json:"answers"` // other than good, that hosts were given
	Branches    map[string]uint64 `json:"branches"`
	Uncovered   []string          `json:"uncovered_branches"`
}

func newReport(t *sim.Total, o *options, took time.Duration) *report {
	r := &report{Seeds: t.Histories, Base: o.base, Violations: len(t.Failed), Unserved: len(t.Unserved), UnservedAt: append([]uint64{}, t.Unserved...), FailedSeeds: []uint64{}, Events: t.Events,
		Operations: t.Operations, Digest: fmt.Sprintf("%016x", t.Digest), Faults: map[string]int{}, Answers: map[string]int{}, Branches: t.Branches(),
		Uncovered: t.Uncovered(), PerSecond: float64(t.Histories) / took.Seconds()}
	for name, n := range t.Faults {
		if answer, ok := strings.CutPrefix(name, "answered "); ok {
			r.Answers[answer] = n
		} else {
			r.Faults[name] = n
		}
	}
	for i, f := range t.Failed {
		r.FailedSeeds = append(r.FailedSeeds, f.Seed)
		if i == 0 {
			r.First, _, _ = strings.Cut(f.Err.Error(), "\n")
		}
	}
	return r
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d histories from base %d, %.1f a second, %d events, %d operations of hosts, digest %s\n", r.Seeds, r.Base, r.PerSecond, r.Events, r.Operations, r.Digest)
	table(w, "faults", r.Faults)
	table(w, "answers", r.Answers)
	table(w, "branches", r.Branches)
	fmt.Fprintf(w, "uncovered: %q\nunserved after faults: %d %v\nviolations: %d\n", r.Uncovered, r.Unserved, r.UnservedAt, r.Violations)
}

func table[N int | uint64](w io.Writer, title string, m map[string]N) {
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	fmt.Fprintln(w, title)
	for _, k := range names {
		fmt.Fprintf(w, "  %-52s %12d\n", k, m[k])
	}
}
