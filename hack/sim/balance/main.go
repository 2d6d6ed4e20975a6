// Command balance plays synthetic histories of work and connectivity against the policy that moves
// the ownership of LUNs, beside simpler policies and an optimum that knows the future.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gemel-storage/gemel/dataplane/balancesim"
	"github.com/gemel-storage/gemel/internal/jsonfile"
)

func main() {
	n := flag.Int("histories", 2400, "how many histories, of three hours each")
	base := flag.Uint64("base", 0, "the first seed; 0: from the clock")
	out := flag.String("out", "out/balance.json", "results; empty: none")
	flag.Parse()
	if err := run(os.Stdout, *n, *base, *out); err != nil {
		fmt.Fprintln(os.Stderr, "balance:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, n int, base uint64, out string) error {
	if n < 1 {
		return fmt.Errorf("-histories %d: it is 1 or more", n)
	}
	if base == 0 {
		base = uint64(time.Now().UnixNano())
	}
	start, shown := time.Now(), time.Now()
	all := make([]balancesim.Outcome, 0, n)
	balancesim.PlayAll(base, n, runtime.GOMAXPROCS(0), func(o balancesim.Outcome) {
		all = append(all, o)
		if time.Since(shown) > 5*time.Second {
			shown = time.Now()
			fmt.Fprintf(w, "%d of %d histories\n", len(all), n)
		}
	})
	s := balancesim.Summarize(all)
	show(w, &s, base, time.Since(start))
	if out != "" {
		if err := jsonfile.Write(out, s); err != nil {
			return err
		}
	}
	return s.Check()
}

func show(w io.Writer, s *balancesim.Summary, base uint64, took time.Duration) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "histories of\tnumber\tcost to optimum\tp95\tif nothing moves\tmoves per LUN and hour\tforwarded share")
	for _, name := range slices.Sorted(maps.Keys(s.Families)) {
		f := s.Families[name]
		fmt.Fprintf(t, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\n", name, f.Histories, f.ToOracle, f.ToOracleP95, f.Static, f.MovesPerHour, f.Forwarded)
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\n%d histories from seed %d, %s\n", s.Histories, base, took.Round(time.Second))
	fmt.Fprintf(w, "cost to the optimum: median %.3f, p95 %.3f, worst %.3f; if nothing moves %.3f, p95 %.3f; by number %.3f; greedy %.3f\n",
		s.ImbalanceToOracle, s.ImbalanceP95, s.ImbalanceWorst, s.StaticToOracle, s.StaticP95, s.CountToOracle, s.GreedyToOracle)
	fmt.Fprintf(w, "moves: %d, greedy %d (%.3f); worse than if nothing moves: %d; moves while idle: %d\n",
		s.Moves, s.GreedyMoves, s.MovesToGreedy, s.WorseThanStatic, s.IdleBalanceMoves)
	fmt.Fprintf(w, "most moves of a LUN in an hour while links flap: %d; pins broken: %d; groups less spread: %d\n",
		s.ThrashPerHour, s.PinViolations, s.GroupViolations)
	for _, b := range s.Worst {
		fmt.Fprintf(w, "worst: seed %d, %s: %.3f (if nothing moves %.3f)\n", b.Seed, b.Family, b.ToOracle, b.Static)
	}
}
