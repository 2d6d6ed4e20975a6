// Command bugs proves that the simulator bites: it builds dataplane/pair, or with -player node the layers around it, with one mistake at a time
// and plays histories until a check fails. It prints, for each mistake, the rule it breaks, how many seeds it took and what caught it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

func main() {
	base := flag.Uint64("base", 1, "draw the seeds from this one")
	only := flag.String("only", "", "bugs whose rule or name contains this")
	which := flag.String("player", "pair", "what plays the histories: pair or node")
	hint := flag.Bool("hints", false, "play the seeds that are known to catch a bug first")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *which, *base, *only, *hint); err != nil {
		fmt.Fprintln(os.Stderr, "bugs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, which string, base uint64, only string, hint bool) error {
	root, err := mutate.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gemel-sim-bugs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all := bugs
	switch which {
	case "pair":
	case "node":
		all = nodeBugs
	default:
		return fmt.Errorf("-player %q: it is pair or node", which)
	}
	var chosen []bug
	for _, b := range all {
		if strings.Contains(b.rule+" "+b.name, only) {
			chosen = append(chosen, b)
		}
	}
	r := &runner{root: root, dir: dir, base: base, hint: hint}
	out, clean := r.all(ctx, chosen)
	table(w, out)
	var errs []error
	known := 0
	for _, o := range out {
		if o.known {
			known++
		}
	}
	fmt.Fprintf(w, "%d bugs, %d of them met by known seeds only, after all that were drawn had passed\n", len(out), known)
	for _, o := range clean {
		fmt.Fprintf(w, "%s: %d seeds, %s\n", o.bug.name, o.seeds, verdict(&o))
	}
	for _, o := range out {
		errs = append(errs, o.problem())
	}
	for _, o := range clean {
		errs = append(errs, o.unsound())
	}
	return errors.Join(errs...)
}

func table(w io.Writer, out []outcome) {
	fmt.Fprintf(w, "%-5s %-58s %6s %20s %6s  %s\n", "rule", "bug", "seeds", "seed", "time", "caught by")
	for i := range out {
		o := &out[i]
		fmt.Fprintf(w, "%-5s %-58s %6d %20d %5.1fs  %s\n", o.bug.rule, o.bug.name, o.seeds, o.seed, o.took.Round(100*time.Millisecond).Seconds(), verdict(o))
	}
}

func verdict(o *outcome) string {
	const width = 110
	text := o.caught
	switch {
	case o.err != nil:
		text = o.err.Error()
	case text == "":
		text = "nothing"
	}
	if o.known {
		text = "(a known seed) " + text
	}
	if len(text) > width {
		text = text[:width] + "…"
	}
	return text
}

// problem is why a bug is not proven to be caught.
func (o *outcome) problem() error {
	switch {
	case o.err != nil:
		return fmt.Errorf("%s, %s: %w", o.bug.rule, o.bug.name, o.err)
	case o.caught == "":
		return fmt.Errorf("%s, %s: not caught by %d seeds", o.bug.rule, o.bug.name, o.seeds)
	}
	return nil
}

// unsound is why a control proves the checks wrong, or the machine.
func (o *outcome) unsound() error {
	switch {
	case o.err != nil:
		return o.err
	case o.caught != "":
		return fmt.Errorf("the unchanged code fails %d of %d seeds: seed %d: %s", len(o.failed), o.seeds, o.seed, o.caught)
	}
	return nil
}
