// Command sim plays new histories of the simulated pair, on all cores, and says how many faults of
// each kind were injected, which branches of the protocol were taken, and which seeds failed.
//
//	sim -seeds 500           fresh seeds, drawn from -base
//	sim -trace 42            one seed, printed: faults, commands, records, roles
//	sim -with "kill,stop"    histories that all have these kinds of faults, and those that they draw
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
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/dataplane/sim"
	"github.com/gemel-storage/gemel/internal/jsonfile"
)

// gcPercent trades memory for time: a history leaves much garbage and lives for milliseconds.
const gcPercent = 400

func main() {
	var o options
	var trace uint64
	var try, skip, with string
	flag.IntVar(&o.seeds, "seeds", 200, "how many histories")
	flag.Uint64Var(&o.base, "base", 0, "draw the seeds from this one; 0: from a random seed")
	flag.Uint64Var(&trace, "trace", 0, "play this one seed and print it")
	flag.StringVar(&o.out, "out", "out/sim.json", "results; empty: none")
	flag.BoolVar(&o.first, "first", false, "stop at the first violation")
	flag.IntVar(&o.procs, "procs", runtime.GOMAXPROCS(0), "histories at a time")
	flag.StringVar(&try, "try", "", "seeds to play before the drawn ones, separated by commas")
	flag.StringVar(&skip, "skip", "", "seeds not to play, separated by commas")
	flag.BoolVar(&o.cfg.Plain, "plain", false, "disks keep no checksums: each seed gives the history that it gave before checksums existed")
	flag.StringVar(&with, "with", "", "kinds of faults that every history has, separated by commas")
	flag.Parse()
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err, skipErr, withErr error
	o.try, err = parseSeeds(try)
	o.skip, skipErr = parseSeeds(skip)
	o.cfg.With, withErr = parseKinds(with)
	switch err = errors.Join(err, skipErr, withErr); {
	case err != nil:
	case trace != 0:
		err = one(os.Stdout, o.cfg, trace)
	default:
		err = many(ctx, os.Stdout, &o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// options of a run over many seeds.
type options struct {
	seeds int
	base  uint64
	out   string
	first bool
	procs int
	try   []uint64
	skip  []uint64
	cfg   sim.Config
}

func parseSeeds(list string) (seeds []uint64, err error) {
	for f := range strings.SplitSeq(list, ",") {
		if f == "" {
			continue
		}
		s, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("a list of seeds: %w", err)
		}
		seeds = append(seeds, s)
	}
	return seeds, nil
}

var errKind = errors.New("no such kind of fault")

func parseKinds(list string) (kinds []string, err error) {
	for k := range strings.SplitSeq(list, ",") {
		if k == "" {
			continue
		}
		if names := sim.FaultNames(); !slices.Contains(names, k) {
			return nil, fmt.Errorf("-with %q: %w; there are %q", k, errKind, names)
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

func one(w io.Writer, cfg sim.Config, seed uint64) error {
	cfg.Seed, cfg.Trace = seed, true
	r := sim.Run(cfg)
	fmt.Fprintln(w, r.String())
	return r.Err
}

var errViolations = errors.New("some histories violate what is promised")

func many(ctx context.Context, w io.Writer, o *options) error {
	if o.seeds < 1 || o.procs < 1 {
		return fmt.Errorf("-seeds %d -procs %d: at least one", o.seeds, o.procs)
	}
	if o.base == 0 {
		o.base = rand.Uint64()
	}
	start := time.Now()
	total := play(ctx, w, o)
	r := newReport(total, o, time.Since(start))
	for _, f := range total.Failed {
		fmt.Fprintf(w, "\n%v\nreplay: go run ./hack/sim %s-trace %d\n", f.Err, flags(&o.cfg), f.Seed)
	}
	r.print(w)
	if o.out != "" {
		if err := jsonfile.Write(o.out, r); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d of %d", r.Seeds, o.seeds)
	case r.Violations > 0:
		return errViolations
	}
	return nil
}

// flags are what a replay needs besides the seed.
func flags(cfg *sim.Config) string {
	text := ""
	if cfg.Plain {
		text = "-plain "
	}
	if len(cfg.With) == 0 {
		return text
	}
	return text + fmt.Sprintf("-with %q ", strings.Join(cfg.With, ","))
}

// play runs the histories, some at a time. Which seeds they are depends on base and try alone.
func play(ctx context.Context, w io.Writer, o *options) *sim.Total {
	rnd := rand.New(rand.NewPCG(o.base, 1))
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := &sim.Total{}
	given := 0
	said := time.Now()
	next := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if given == o.seeds || o.first && len(total.Failed) > 0 || ctx.Err() != nil {
			return 0, false
		}
		given++
		if given <= len(o.try) {
			return o.try[given-1], true
		}
		return rnd.Uint64(), true
	}
	for range o.procs {
		wg.Go(func() {
			for {
				seed, ok := next()
				if !ok {
					return
				}
				if slices.Contains(o.skip, seed) {
					continue
				}
				cfg := o.cfg
				cfg.Seed = seed
				r := sim.Run(cfg)
				mu.Lock()
				total.Add(r)
				if time.Since(said) > 5*time.Second {
					said = time.Now()
					fmt.Fprintf(w, "%d of %d histories, %d violations\n", total.Histories, o.seeds, len(total.Failed))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return total
}
