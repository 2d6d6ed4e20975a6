package v1alpha1

import (
	"maps"
	"slices"
	"strings"
)

// Of reports whether a worker with these labels has all labels of the term.
func (t TopologyTerm) Of(labels map[string]string) bool {
	for k, v := range t.MatchLabels {
		if have, ok := labels[k]; !ok || have != string(v) {
			return false
		}
	}
	return true
}

// Labels of the term.
func (t TopologyTerm) Labels() map[string]string {
	m := make(map[string]string, len(t.MatchLabels))
	for k, v := range t.MatchLabels {
		m[k] = string(v)
	}
	return m
}

// String lists the labels of the term, sorted by key.
func (t TopologyTerm) String() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(t.MatchLabels)) {
		out = append(out, k+"="+string(t.MatchLabels[k]))
	}
	return strings.Join(out, ", ")
}

// Reached reports whether a worker with these labels has all labels of one term. No terms: every
// worker has.
func Reached(terms []TopologyTerm, labels map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(t TopologyTerm) bool { return t.Of(labels) })
}

// TermsText lists terms for messages, at most eight.
func TermsText(terms []TopologyTerm) string {
	const most = 8
	var out []string
	for i, t := range terms {
		if i == most {
			return strings.Join(out, " or ") + " or others"
		}
		out = append(out, t.String())
	}
	return strings.Join(out, " or ")
}

// MaxDiskTerms is how many bytes the terms of one LUN may have, as JSON: they are kept in labels on
// the disks.
const MaxDiskTerms = 24 << 10
