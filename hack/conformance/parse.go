package main

import (
	"regexp"
	"strings"
)

// Outcome of one test. A test that says it skipped is skipped, although CUnit counts it as passed.
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped"
	hung    outcome = "no result" // it was running when the tool ended
)

// result is the result of one test of iscsi-test-cu.
type result struct {
	name    string // Family.Test, as the tool's -t option takes it after "ALL."
	outcome outcome
	why     string // first line about a failure or skip
}

var (
	suiteLine = regexp.MustCompile(`(?m)^Suite: (\S+)$`)
	testMark  = regexp.MustCompile(`(?m)^  Test: (\S+) \.\.\.`)
	// CUnit prints the verdict right after the mark, or at the start of a line if the test printed
	// something.
	verdict = regexp.MustCompile(`(?m)^(passed|FAILED)`)
	reason  = regexp.MustCompile(`(?m)^.*(\[SKIPPED\]|\[FAILED\]|\[FAILURE\]|^    1\. ).*$`)
)

// parse reads the verbose output of iscsi-test-cu.
func parse(text string) []result {
	var out []result
	suites := suiteLine.FindAllStringSubmatchIndex(text, -1)
	for i, s := range suites {
		end := len(text)
		if i+1 < len(suites) {
			end = suites[i+1][0]
		}
		family, body := text[s[2]:s[3]], text[s[1]:end]
		tests := testMark.FindAllStringSubmatchIndex(body, -1)
		for j, t := range tests {
			end := len(body)
			if j+1 < len(tests) {
				end = tests[j+1][0]
			}
			out = append(out, parseTest(family+"."+body[t[2]:t[3]], body[t[1]:end]))
		}
	}
	return out
}

func parseTest(name, body string) result {
	r := result{name: name, outcome: hung}
	v := verdict.FindStringIndex(body)
	if v == nil {
		return r
	}
	// What follows "passed" belongs to the cleanup between tests, what follows "FAILED" lists the
	// assertions.
	said := body[:v[0]]
	switch {
	case body[v[0]:v[1]] == "FAILED":
		r.outcome, said = failed, body
	case strings.Contains(said, "[SKIPPED]"):
		r.outcome = skipped
	default:
		r.outcome = passed
	}
	if r.outcome != passed {
		r.why = strings.TrimSpace(reason.FindString(said))
	}
	return r
}
