package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// expectation is a line of the reviewed list: a test that does not pass, and why that is right.
type expectation struct {
	outcome outcome
	reason  string
}

// readReviewed reads lines of "Family.Test failed|skipped reason"; # begins a comment. A test that
// is not listed is expected to pass. A name may begin with "variant:" to hold for that variant
// only.
func readReviewed(path string) (map[string]expectation, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list := map[string]expectation{}
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		if len(fields) < 3 || strings.TrimSpace(fields[2]) == "" {
			return nil, fmt.Errorf("%s:%d: want a test, an outcome and a reason", path, n)
		}
		o := outcome(fields[1])
		if o != failed && o != skipped {
			return nil, fmt.Errorf("%s:%d: outcome %q is neither failed nor skipped", path, n, fields[1])
		}
		if _, twice := list[fields[0]]; twice {
			return nil, fmt.Errorf("%s:%d: %s is listed twice", path, n, fields[0])
		}
		list[fields[0]] = expectation{o, strings.TrimSpace(fields[2])}
	}
	return list, in.Err()
}

// expected returns the expectation of the list for a test in a variant.
func expected(list map[string]expectation, variant, test string) outcome {
	if e, ok := list[variant+":"+test]; ok {
		return e.outcome
	}
	if e, ok := list[test]; ok {
		return e.outcome
	}
	return passed
}

// deviations compares results with the list, both ways: a test that passes against expectation has
// to be taken off the list, so that a later failure is noticed.
func deviations(results []result, list map[string]expectation, variant string) []string {
	var out []string
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.name] = true
		if want := expected(list, variant, r.name); want != r.outcome {
			text := fmt.Sprintf("%s: %s, reviewed as %s", r.name, r.outcome, want)
			if r.why != "" {
				text += ": " + r.why
			}
			out = append(out, text)
		}
	}
	for name := range list {
		v, test, has := strings.Cut(name, ":")
		if !has {
			test = name
		}
		if (!has || v == variant) && !seen[test] {
			out = append(out, test+": on the reviewed list, but it did not run")
		}
	}
	return out
}
