// Command tiers plays loads against the policy that arranges the tiers of a pool, beside simpler
// policies and one that knows the load.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/gemel-storage/gemel/dataplane/tieringsim"
	"github.com/gemel-storage/gemel/internal/jsonfile"
)

func main() {
	seeds := flag.Int("seeds", 1, "how many histories of each family, of a day each")
	base := flag.Uint64("base", 0, "the first seed; 0: from the clock")
	small := flag.Bool("small", false, "a pool of 128 GiB in place of one of 2 TiB")
	out := flag.String("out", "out/tiers-sim.json", "results; empty: none")
	flag.Parse()
	if err := run(os.Stdout, *seeds, *base, *small, *out); err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, seeds int, base uint64, small bool, out string) error {
	if seeds < 1 {
		return fmt.Errorf("-seeds %d: it is 1 or more", seeds)
	}
	if base == 0 {
		base = uint64(time.Now().UnixNano())
	}
	size := tieringsim.Real
	if small {
		size = tieringsim.Small
	}
	begun := time.Now()
	fmt.Fprintf(w, "%d extents of 4 MiB, %d of them on Fast; %.0f random reads a second, %d moves a minute; seed %d\n",
		size.Extents, size.Fast, size.IOPS, 2*size.Budget, base)
	fmt.Fprintf(w, "%-10s %-8s %9s %14s %16s %12s\n", "load", "policy", "hit share", "moves in 12 h", "moves in a day", "min. to hot")
	sum, err := tieringsim.PlayAll(size, base, seeds, runtime.GOMAXPROCS(0), func(family string, _ uint64, all map[string]tieringsim.Outcome) {
		for _, p := range []string{tieringsim.Gemel, tieringsim.LRU, tieringsim.LFU, tieringsim.Static, tieringsim.Oracle} {
			o := all[p]
			fmt.Fprintf(w, "%-10s %-8s %9.3f %14d %16d %12.1f\n", family, p, o.Hits, o.Moves, o.MovesAll, o.MinutesToHot)
		}
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nhit share to the oracle's on Zipf %.3f; beside scans %.2f times LRU's, %.3f of that without scans\n",
		sum.HitShareToOracle, sum.ScansToLRU, sum.ScansToZipf)
	fmt.Fprintf(w, "evenly warm: %.4f of the set moved in a day; swinging: %.3f of Fast moved in an hour; %s\n",
		sum.UniformMoved, sum.SwingingMoves, time.Since(begun).Round(time.Second))
	if out != "" {
		if err := jsonfile.Write(out, sum); err != nil {
			return err
		}
	}
	return sum.Check()
}
