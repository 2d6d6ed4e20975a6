// Package report counts the specs of an end-to-end suite, and reads what the mutants found.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// Counts of specs.
type Counts struct {
	Specs   int `json:"specs"`
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"` // also those that were not chosen
}

// Count counts specs, and what failed before, between or after them.
func Count(r types.Report) (c Counts) {
	for _, s := range r.SpecReports {
		if s.LeafNodeType != types.NodeTypeIt && !s.Failed() {
			continue
		}
		c.Specs++
		switch s.State {
		case types.SpecStatePassed:
			c.Passed++
		case types.SpecStateSkipped, types.SpecStatePending:
			c.Skipped++
		default:
			c.Failed++
		}
	}
	return c
}

// hazardLabel is what Hazards makes and Proved reads.
const hazardLabel = "hazard-%d"

// Hazards are labels of a spec that proves what a worker does about these. The numbers are those of
// docs/workers.md.
func Hazards(numbers ...int) (labels []string) {
	for _, n := range numbers {
		labels = append(labels, fmt.Sprintf(hazardLabel, n))
	}
	return labels
}

// Proved lists the hazards that specs of this run are about, all of which passed.
func Proved(r types.Report) (numbers []int) {
	good := map[int]bool{}
	for _, s := range r.SpecReports {
		for _, l := range s.Labels() {
			var n int
			if _, err := fmt.Sscanf(l, hazardLabel, &n); err != nil || s.State == types.SpecStateSkipped || s.State == types.SpecStatePending {
				continue
			}
			before, seen := good[n]
			good[n] = s.State == types.SpecStatePassed && (before || !seen)
		}
	}
	for n, ok := range good {
		if ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// Mutants are what the command that breaks the product on purpose found.
type Mutants struct {
	Mutants int   `json:"mutants"`
	Caught  int   `json:"caught"`
	Hazards []int `json:"hazards,omitempty"`
}

// ReadMutants reads its file; nil if there is none, or none that was written in the last limit: the
// code is another one by then.
func ReadMutants(path string, limit time.Duration) (*Mutants, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && time.Since(info.ModTime()) > limit {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &Mutants{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}
