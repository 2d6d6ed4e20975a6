// Command bugs proves that the simulator catches mistakes: it builds dataplane/pair and the
// simulated runtime, or with -player node the layers around the machine, with one mistake at a time
// and plays histories until a check fails. It prints, for each mistake, the rule it breaks, how
// many seeds it took and what caught it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

func main() {
	base := flag.Uint64("base", 1, "draw the seeds from this one")
	only := flag.String("only", "", "bugs whose rule or name contains this")
	which := flag.String("player", "pair", "what plays the histories: pair or node")
	hint := flag.Bool("hints", false, "play the seeds that are known to catch a bug first")
	flag.Parse()
	mutate.Main("bugs", func(ctx context.Context, w io.Writer, root, dir string) error {
		return run(ctx, w, &runner{root: root, dir: dir, base: *base, hint: *hint}, *which, *only)
	})
}

func run(ctx context.Context, w io.Writer, r *runner, which, only string) error {
	all := bugs
	switch which {
	case "pair":
	case "node":
		all = nodeBugs
	default:
		return fmt.Errorf("-player %q: it is pair or node", which)
	}
	chosen, err := mutate.Choose(all, only, func(b bug) string { return b.rule + " " + b.name })
	if err != nil {
		return err
	}
	out, clean := r.all(ctx, chosen)
	table(w, out)
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
	errs := mutate.Problems(out, (*outcome).problem)
	return errors.Join(append(errs, mutate.Problems(clean, (*outcome).unsound)...)...)
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

// unsound is why a control proves that the checks or the unchanged code are wrong.
func (o *outcome) unsound() error {
	switch {
	case o.err != nil:
		return o.err
	case o.caught != "":
		return fmt.Errorf("the unchanged code fails %d of %d seeds: seed %d: %s", len(o.failed), o.seeds, o.seed, o.caught)
	}
	return nil
}
