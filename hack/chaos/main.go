// Command chaos injects faults that follow from a seed into two real target processes, and judges
// what clients saw. It needs root: it runs itself in a network and a mount namespace of its own, in
// which everything happens.
//
//	chaos -duration 10m
//	chaos -seed 42 -v        the faults of seed 42, each one printed
//	chaos -faults kill,stop  only some kinds
//	chaos -faults damage     only blocks, checksums and files that change behind a node's back
//	chaos -soak -duration 8h memory, goroutines and open files have to stay flat
//
// Interrupted (SIGINT, SIGTERM), it ends the faults, judges what was recorded until then, prints
// and writes the report, and fails. A second interrupt ends it at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/chaos"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

func main() {
	var c chaos.Config
	flag.DurationVar(&c.Duration, "duration", time.Minute, "how long faults are injected")
	flag.Uint64Var(&c.Seed, "seed", 0, "seed of the faults; 0: a random seed")
	faults := flag.String("faults", "", "only these kinds, separated by commas; empty: all")
	out := flag.String("out", "out/chaos.json", "results")
	flag.StringVar(&c.Binary, "target", "", "gemel-target to test; empty: built from this tree")
	flag.BoolVar(&c.Soak, "soak", false, "phases of 10 minutes take turns: all kinds, and those that leave the processes alive; then memory, goroutines and open files must be flat")
	flag.BoolVar(&c.Members, "members", false, "the volume of each node has three places, of which one is drained all the time; without the faults that look for a LUN in one file")
	flag.BoolVar(&c.NoChecksums, "no-checksums", false, "the nodes keep no checksums: -faults damage has to be found as wrong bytes")
	flag.BoolVar(&c.Verbose, "v", false, "print every episode")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := 0, error(nil)
	if netns.Isolated() {
		context.AfterFunc(ctx, stop) // a second interrupt ends it at once
		err = run(ctx, c, *faults, *out)
		if ctx.Err() != nil && !errors.Is(err, chaos.ErrInterrupted) { // before there was anything to judge
			err = errors.Join(chaos.ErrInterrupted, err)
		}
	} else if err = chaos.Supported(); err == nil {
		stop() // the copy takes interrupts
		code, err = netns.Isolate(context.Background())
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, c chaos.Config, faults, out string) (err error) {
	if c.Duration <= 0 {
		return fmt.Errorf("-duration %v: must be positive", c.Duration)
	}
	if c.Kinds, err = chaos.ParseKinds(faults); err != nil {
		return err
	}
	for c.Seed == 0 {
		c.Seed = rand.Uint64N(1_000_000_000)
	}
	if c.Binary == "" {
		dir, err := os.MkdirTemp("", "gemel-chaos-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if c.Binary, err = harness.Build(ctx, dir, "./cmd/gemel-target"); err != nil {
			return err
		}
	}
	c.Out, c.Logs = os.Stdout, filepath.Join(filepath.Dir(out), "chaos-logs")
	rep, err := chaos.Run(ctx, c)
	return tell(os.Stdout, out, rep, err)
}

// tell prints and writes the report, also of a run that failed or was interrupted; without a report
// the run did not start.
func tell(w io.Writer, out string, rep *chaos.Report, err error) error {
	if rep == nil {
		return err
	}
	rep.Print(w)
	return errors.Join(err, jsonfile.Write(out, rep))
}
