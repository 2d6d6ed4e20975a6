// Command mutants proves that the tests of the hazards on workers bite: it takes out one guard at a time and runs the test that is named
// after the hazard, which has to fail. Hazards are those of docs/workers.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

func main() {
	only := flag.String("only", "", "mutants whose \"hazard N: name\" contains this")
	out := flag.String("out", "", "file for a summary in JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, only, file string) error {
	start := time.Now()
	root, err := mutate.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gemel-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var chosen []mutant
	for _, m := range mutants {
		if strings.Contains(m.String(), only) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-only %q: no mutant is called so", only)
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
	var errs []error
	for _, o := range all {
		if !o.caught {
			errs = append(errs, fmt.Errorf("%s: %s", o.mutant, o.verdict()))
		}
	}
	fmt.Fprintf(w, "%d mutants, %d caught, %s\n", len(all), len(all)-len(errs), time.Since(start).Round(time.Second))
	return errors.Join(errs...)
}

// summary is what is written as JSON.
type summary struct {
	Mutants int      `json:"mutants"`
	Caught  int      `json:"caught"`
	Hazards []int    `json:"hazards"` // all of whose mutants were caught
	Missed  []string `json:"missed"`
	Seconds float64  `json:"seconds"`
}

func summarize(all []outcome, took time.Duration) summary {
	s := summary{Mutants: len(all), Hazards: []int{}, Missed: []string{}, Seconds: took.Round(time.Second).Seconds()}
	survived := map[int]bool{}
	for _, o := range all {
		if o.caught {
			s.Caught++
		} else {
			survived[o.hazard] = true
			s.Missed = append(s.Missed, o.mutant.String())
		}
	}
	for _, o := range all {
		if !survived[o.hazard] && !slices.Contains(s.Hazards, o.hazard) {
			s.Hazards = append(s.Hazards, o.hazard)
		}
	}
	slices.Sort(s.Hazards)
	return s
}
