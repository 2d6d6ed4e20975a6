// Command sim plays histories of the simulated pair that nobody has seen, on all cores, and says how many faults of each
// kind were injected, which branches of the protocol were taken, and which seeds failed.
//
//	sim -seeds 500           fresh seeds, drawn from -base
//	sim -trace 42            one seed, printed event by event
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/target/sim"
)

func main() {
	seeds := flag.Int("seeds", 200, "how many histories")
	base := flag.Uint64("base", 0, "draw the seeds from this one; 0: from chance")
	trace := flag.Uint64("trace", 0, "play this one seed and print it")
	out := flag.String("out", "out/sim.json", "results; empty: none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *trace != 0 {
		err = one(os.Stdout, *trace)
	} else {
		err = many(ctx, os.Stdout, *seeds, *base, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

func one(w io.Writer, seed uint64) error {
	r := sim.Run(sim.Config{Seed: seed, Trace: true})
	fmt.Fprintln(w, r.String())
	return r.Err
}

// report is what is written to the file.
type report struct {
	Seeds       int               `json:"seeds"`
	Base        uint64            `json:"base"`
	Violations  int               `json:"violations"`
	FailedSeeds []uint64          `json:"failed_seeds"`
	Events      int               `json:"events"`
	Operations  int               `json:"operations"`
	PerSecond   float64           `json:"histories_per_second"`
	Faults      map[string]int    `json:"faults"`
	Branches    map[string]uint64 `json:"branches"`
	Uncovered   []string          `json:"uncovered_branches"`
}

var errViolations = errors.New("some histories violate what is promised")

func many(ctx context.Context, w io.Writer, seeds int, base uint64, out string) error {
	if seeds < 1 {
		return fmt.Errorf("-seeds %d: at least one", seeds)
	}
	if base == 0 {
		base = rand.Uint64()
	}
	start := time.Now()
	total := play(ctx, w, seeds, base)
	r := report{Seeds: total.Histories, Base: base, Violations: len(total.Failed), FailedSeeds: []uint64{}, Events: total.Events,
		Operations: total.Operations, Faults: total.Faults, Branches: total.Branches(), Uncovered: total.Uncovered(),
		PerSecond: float64(total.Histories) / time.Since(start).Seconds()}
	for _, f := range total.Failed {
		r.FailedSeeds = append(r.FailedSeeds, f.Seed)
		fmt.Fprintf(w, "\n%v\nreplay: go run ./hack/sim -trace %d\n", f.Err, f.Seed)
	}
	print(w, &r)
	if out != "" {
		if err := write(out, &r); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d of %d", r.Seeds, seeds)
	case r.Violations > 0:
		return errViolations
	}
	return nil
}

// play runs the histories on all cores. The seeds depend on base alone.
func play(ctx context.Context, w io.Writer, n int, base uint64) *sim.Total {
	rnd := rand.New(rand.NewPCG(base, 1))
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := &sim.Total{}
	todo := n
	said := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				if todo == 0 {
					mu.Unlock()
					return
				}
				todo--
				seed := rnd.Uint64()
				mu.Unlock()
				r := sim.Run(sim.Config{Seed: seed})
				mu.Lock()
				total.Add(r)
				if time.Since(said) > 5*time.Second {
					said = time.Now()
					fmt.Fprintf(w, "%d of %d histories, %d violations\n", total.Histories, n, len(total.Failed))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return total
}

func print(w io.Writer, r *report) {
	fmt.Fprintf(w, "\n%d histories from base %d, %.1f a second, %d events, %d operations of hosts\n", r.Seeds, r.Base, r.PerSecond, r.Events, r.Operations)
	table(w, "faults and answers", r.Faults)
	table(w, "branches", r.Branches)
	fmt.Fprintf(w, "uncovered: %v\nviolations: %d\n", r.Uncovered, r.Violations)
}

func table[N int | uint64](w io.Writer, title string, m map[string]N) {
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	fmt.Fprintln(w, title)
	for _, k := range names {
		fmt.Fprintf(w, "  %-24s %12d\n", k, m[k])
	}
}

func write(path string, r *report) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
