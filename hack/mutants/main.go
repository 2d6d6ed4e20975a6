// Command mutants proves that the tests of the hazards on workers catch mistakes: it removes one
// guard at a time and runs the test that is named after the hazard, which has to fail. Hazards are
// those of docs/workers.md. Guards of the policy that moves ownership, of copies, of the spread of
// consistency groups and of group snapshots are tried likewise.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

func main() {
	only := flag.String("only", "", `mutants whose "hazard N: name", "ownership: name", "copies: name", "spread: name" or "groups: name" contains this`)
	out := flag.String("out", "", "file for a summary in JSON")
	flag.Parse()
	mutate.Main("mutants", func(ctx context.Context, w io.Writer, root, dir string) error {
		return run(ctx, w, root, dir, *only, *out)
	})
}

func run(ctx context.Context, w io.Writer, root, dir, only, file string) error {
	start := time.Now()
	chosen, err := mutate.Choose(mutants, only, mutant.String)
	if err != nil {
		return err
	}
	r := &runner{root: root, dir: dir, report: func(o outcome) {
		fmt.Fprintf(w, "%5.1fs  %-75s %s\n", o.took.Seconds(), o.mutant, o.verdict())
	}}
	if err := r.control(ctx, chosen); err != nil {
		return err
	}
	all := r.all(ctx, chosen)
	if file != "" {
		if err := jsonfile.Write(file, summarize(all, time.Since(start))); err != nil {
			return err
		}
	}
	survived := mutate.Problems(all, (*outcome).problem)
	fmt.Fprintf(w, "%d mutants, %d caught, %s\n", len(all), len(all)-len(survived), time.Since(start).Round(time.Second))
	return errors.Join(survived...)
}

// summary is written as JSON.
type summary struct {
	Mutants  int      `json:"mutants"`
	Caught   int      `json:"caught"`
	Hazards  []int    `json:"hazards"` // all of whose mutants were caught
	Survived []string `json:"survived"`
	Seconds  float64  `json:"seconds"`
}

func summarize(all []outcome, took time.Duration) summary {
	s := summary{Mutants: len(all), Hazards: []int{}, Survived: []string{}, Seconds: took.Round(time.Second).Seconds()}
	open := map[int]bool{} // hazards of mutants that survived
	for _, o := range all {
		if o.caught {
			s.Caught++
		} else {
			open[o.hazard] = true
			s.Survived = append(s.Survived, o.mutant.String())
		}
	}
	for _, o := range all {
		if o.hazard > 0 && !open[o.hazard] && !slices.Contains(s.Hazards, o.hazard) {
			s.Hazards = append(s.Hazards, o.hazard)
		}
	}
	slices.Sort(s.Hazards)
	return s
}
