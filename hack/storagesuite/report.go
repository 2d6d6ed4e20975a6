package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// report is what a run found, for people and CI.
type report struct {
	Run     int     `json:"run"` // passed and failed
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Skipped int     `json:"skipped"` // by themselves
	Seconds float64 `json:"seconds"`

	Skips    map[string]int `json:"skips"`    // reason, as the test gave it: count
	LeftOut  map[string]int `json:"left_out"` // reason, of filter.go: count
	Unasked  int            `json:"unasked"`  // not chosen by -focus and -skip
	Failures []failure      `json:"failures"`
	Slowest  []spec         `json:"slowest"` // ten

	NotUnderstood []string `json:"not_understood,omitempty"` // reasons of skips that filter.go does not know

	why  map[string]string // reason of a skip: what filter.go says of it
	more []rule            // of skips, of this run only
}

type failure struct {
	Name    string  `json:"name,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Message string  `json:"message"`
}

type spec struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

func newReport() *report {
	return &report{Skips: map[string]int{}, LeftOut: map[string]int{}, Failures: []failure{}, why: map[string]string{}}
}

// addPart counts the tests of external drivers that belong to a part; chosen says that some of them
// were chosen by name.
func (r *report) addPart(p part, suites []types.Report, chosen bool) {
	for _, suite := range suites {
		r.Seconds += suite.RunTime.Seconds()
		for _, reason := range suite.SpecialSuiteFailureReasons {
			r.fail(failure{Message: string(p) + ": " + reason})
		}
		for _, s := range suite.SpecReports {
			if s.LeafNodeType != types.NodeTypeIt || p.has(s.FullText()) {
				r.add(s, chosen)
			}
		}
	}
}

// finish is to be called when all parts have been added.
func (r *report) finish() {
	slices.SortFunc(r.Slowest, func(a, b spec) int { return cmp.Compare(b.Seconds, a.Seconds) })
	r.Slowest = r.Slowest[:min(len(r.Slowest), 10)]
	if r.Run == 0 {
		r.fail(failure{Message: "no test ran"})
	}
}

func (r *report) fail(f failure) {
	r.Failed++
	r.Failures = append(r.Failures, f)
}

func (r *report) add(s types.SpecReport, chosen bool) {
	name := s.FullText()
	if s.LeafNodeType != types.NodeTypeIt {
		if s.Failed() { // the suite's own setup
			r.fail(failure{Name: s.LeafNodeType.String() + " " + name, Message: s.Failure.Message})
		}
		return
	}
	if !strings.Contains(name, external) {
		return
	}
	switch {
	case s.State.Is(types.SpecStatePassed):
		r.Run++
		r.Passed++
		r.Slowest = append(r.Slowest, spec{short(name), s.RunTime.Seconds()})
	case s.Failed():
		r.Run++
		r.fail(failure{short(name), s.RunTime.Seconds(), s.Failure.Message})
	case s.Failure.Message != "":
		r.Skipped++
		r.Skips[s.Failure.Message]++
		if why, ok := skipped(short(name), s.Failure.Message, r.more); ok {
			r.why[s.Failure.Message] = why
		} else if !slices.Contains(r.NotUnderstood, s.Failure.Message) {
			r.NotUnderstood = append(r.NotUnderstood, s.Failure.Message)
		}
	default: // not started
		if why, ok := match(leftOut, name); ok {
			r.LeftOut[why]++
		} else if chosen {
			r.Unasked++
		} else {
			r.LeftOut["not started: the run ended before"]++
		}
	}
}

func (r *report) ok() bool { return r.Failed == 0 && len(r.NotUnderstood) == 0 }

func (r *report) print(out io.Writer) {
	list := func(title string, m map[string]int, why func(string) string) {
		if len(m) == 0 {
			return
		}
		fmt.Fprintf(out, "\n%s:\n", title)
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(out, "%5d  %s%s\n", m[k], k, why(k))
		}
	}
	list("skipped themselves", r.Skips, func(reason string) string {
		if slices.Contains(r.NotUnderstood, reason) {
			return "\n         NOT UNDERSTOOD: a capability that testdriver.yaml lacks? If it is right, filter.go has to say why"
		}
		return "\n         " + r.why[reason]
	})
	list("left out", r.LeftOut, func(string) string { return "" })
	if len(r.Failures) > 0 {
		fmt.Fprintln(out, "\nfailed:")
	}
	for _, f := range r.Failures {
		fmt.Fprintf(out, "  %s (%.0f s)\n      %s\n", f.Name, f.Seconds, strings.ReplaceAll(f.Message, "\n", "\n      "))
	}
	fmt.Fprintf(out, "\n%d run, %d passed, %d failed, %d skipped in %.0f s\n", r.Run, r.Passed, r.Failed, r.Skipped, r.Seconds)
}
