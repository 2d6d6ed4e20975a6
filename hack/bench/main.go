// Command bench measures what users get: the default case (mirrored, mutual TLS on the link, XFS),
// variants that explain it, and peers, interleaved in the same rounds; cold, slow, overloaded and
// degraded as well as hot. It needs root: it runs itself in a network and a mount namespace of its
// own, in which everything happens.
//
//	bench                      everything but the hour of ageing: half an hour
//	bench -quick               the short part: 5 minutes
//	bench -only cold,fua       the cases whose name contains one of these
//	bench -only aged -age 1h   the pause of a snapshot after an hour of random writes and snapshots
//	bench -only group_         1 to 16 LUNs, of one node and of both, over 1 to 4 backing volumes
//	bench -base COMMIT         the same cases against gemel-target as it was at a commit
//	bench -against plain       only with these of the systems that a case names, and with -base
//	bench -list                the cases
//	bench -docs docs           tables and plots of the last results into docs/benchmarks.md
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

type options struct {
	dir, out, only, base, docs, profile, against string
	quick, list, merge, verbose                  bool
	rounds                                       int
	time, age                                    time.Duration
	size                                         int64
}

func main() {
	rig.HopMain() // does not return in the processes that are bare hops
	var o options
	flag.StringVar(&o.dir, "dir", "", "folder for all files during the run (default: the folder for temporary files)")
	flag.StringVar(&o.out, "out", "out/bench.json", "results")
	flag.StringVar(&o.only, "only", "", "run only cases with this name, or whose name contains it; several, separated by commas")
	flag.BoolVar(&o.merge, "merge", false, "keep the rows of -out that this run does not measure; with -docs: those of the page that -out does not have")
	flag.StringVar(&o.base, "base", "", "compare with gemel-target of this commit, too")
	flag.StringVar(&o.against, "against", "", "compare only with these of the systems that a case names, separated by commas, and with -base")
	flag.StringVar(&o.docs, "docs", "", "measure nothing: write tables and plots of -out into this folder")
	flag.BoolVar(&o.quick, "quick", false, "the short part, with shorter and fewer rounds")
	flag.BoolVar(&o.list, "list", false, "list the cases")
	flag.IntVar(&o.rounds, "rounds", 0, "interleaved rounds of each case (default 5, quick 3; checksum_cost_*, luns4_* and cached_read_* without -quick: at least 41)")
	flag.DurationVar(&o.time, "time", 0, "length of a measurement in a round (default 600ms, quick 300ms; checksum_cost_*, luns4_* and cached_read_* without -quick: 200ms)")
	flag.DurationVar(&o.age, "age", 5*time.Minute, "how long the case snapshot_pause_aged_ms writes before it measures")
	flag.Int64Var(&o.size, "size", 0, "bytes of the LUNs that are measured hot (default 512 MiB, quick 128 MiB)")
	flag.StringVar(&o.profile, "profile", "", "write the client's CPU profile to this file; the cases group_*_luns write profiles of both nodes beside it")
	flag.BoolVar(&o.verbose, "v", false, "show the clients' path events")
	flag.Parse()
	o.setDefaults()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := 0, error(nil)
	switch {
	case o.list:
		listCases(os.Stdout)
	case o.docs != "":
		err = results.WriteDocs(o.out, o.docs, o.merge)
	case netns.Isolated():
		if err = run(ctx, o); ctx.Err() != nil {
			err = errors.New("interrupted; everything is cleaned up")
		}
	default:
		if err = o.check(); err == nil {
			stop() // the copy takes interrupts
			code, err = netns.Isolate(context.Background())
		}
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

func (o *options) setDefaults() {
	pick := func(full, quick int64) int64 {
		if o.quick {
			return quick
		}
		return full
	}
	if o.rounds == 0 {
		o.rounds = int(pick(5, 3))
	}
	if o.time == 0 {
		o.time = time.Duration(pick(int64(600*time.Millisecond), int64(300*time.Millisecond)))
	}
	if o.size == 0 {
		o.size = pick(512<<20, 128<<20)
	}
}

// check refuses wrong options before anything is started.
func (o *options) check() error {
	switch {
	case o.rounds < 2:
		return fmt.Errorf("-rounds %d: at least 2, a control needs two", o.rounds)
	case o.time < 50*time.Millisecond:
		return fmt.Errorf("-time %v: at least 50ms", o.time)
	case o.size < 64<<20 || o.size%(1<<20) != 0:
		return fmt.Errorf("-size %d: at least 64 MiB, a multiple of 1 MiB", o.size)
	case o.age < time.Second:
		return fmt.Errorf("-age %v: at least 1s", o.age)
	case len(o.selected()) == 0:
		return fmt.Errorf("-only %q: there is no such case; -list lists them", o.only)
	}
	if err := lab.CanMount(); err != nil {
		return fmt.Errorf("the benchmark needs filesystems of its own: %w", err)
	}
	return nil
}

func run(ctx context.Context, o options) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if b, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, b)
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	log := slog.New(slog.DiscardHandler)
	if o.verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	b, err := newBench(ctx, o, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	begun := time.Now()
	report, failures := b.runCases(ctx)
	report.Seconds = time.Since(begun).Seconds()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	results.PrintTable(os.Stdout, report.Rows)
	for _, s := range report.Skipped {
		fmt.Println("skipped:", s)
	}
	fmt.Printf("%d rows in %.0f s\n", len(report.Rows), report.Seconds)
	if o.merge {
		old, err := results.Read(o.out)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(failures, err)
		}
		old.Merge(report.Rows)
		report.Rows, report.Seconds = old.Rows, report.Seconds+old.Seconds
	}
	return errors.Join(failures, results.Write(o.out, report))
}
