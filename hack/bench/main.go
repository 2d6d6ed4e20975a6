// Command bench compares the target with Debian's tgtd on this machine: same client (package initiator), same filesystem, alternating
// rounds. It prints a table, in which a ratio above 1 means that Gemel is better, and writes out/bench.json.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/jsonfile"
)

type options struct {
	dir, out, only, profile string
	rounds, events          int
	seconds                 time.Duration
	size                    int64
	verbose                 bool
}

var workloads = []workload{
	{"randread_4k_qd32", initiator.OpRead, 4096, 32, true},
	{"randread_4k_qd1", initiator.OpRead, 4096, 1, true},
	{"randwrite_4k_qd32", initiator.OpWrite, 4096, 32, true},
	{"seqread_1m", initiator.OpRead, 1 << 20, 4, false},
	{"seqwrite_1m", initiator.OpWrite, 1 << 20, 4, false},
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "where both targets keep their files (default: a temporary folder)")
	flag.StringVar(&o.out, "out", "out/bench.json", "results")
	flag.StringVar(&o.only, "only", "", "run only workloads whose name contains this")
	flag.IntVar(&o.rounds, "rounds", 5, "alternating rounds per workload")
	flag.DurationVar(&o.seconds, "time", 2*time.Second, "length of a round")
	flag.Int64Var(&o.size, "size", 1<<30, "bytes of the LUN")
	flag.IntVar(&o.events, "events", 10, "transfers, and crashes, to measure")
	flag.StringVar(&o.profile, "profile", "", "write the client's CPU profile to this file")
	flag.BoolVar(&o.verbose, "v", false, "show the client's path events")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.rounds < 1 || o.events < 1 || o.seconds <= 0 || o.size < 1<<20 {
		return errors.New("rounds, events, time and size must be positive, size at least 1 MiB")
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "gemel-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.dir)
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
	nodes, err := startPair(ctx, o.dir, o.size, log)
	if err != nil {
		return err
	}
	defer nodes.close()
	gemel, err := nodes.unmirrored(ctx)
	if err != nil {
		return err
	}
	defer gemel.close()
	peer, err := startTgt(ctx, o.dir, o.size)
	if err != nil {
		return err
	}
	defer peer.close()
	for _, s := range []*served{gemel, peer} {
		fmt.Printf("filling %s's LUN of %d MiB with random data\n", s.name, o.size>>20)
		if err := prefill(ctx, s); err != nil {
			return err
		}
	}
	var list []result
	for _, w := range workloads {
		if !strings.Contains(w.name, o.only) {
			continue
		}
		r, err := alternate(ctx, o, w, gemel, peer)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		list = append(list, r)
	}
	if strings.Contains("iscsi_perf_randread_4k_qd32", o.only) {
		if _, err := exec.LookPath("iscsi-perf"); err != nil {
			fmt.Println("skipped: iscsi_perf_randread_4k_qd32: iscsi-perf is not installed (Debian package libiscsi-bin)")
		} else if r, err := secondOpinion(ctx, o, gemel, peer); err != nil {
			return err
		} else {
			list = append(list, r)
		}
	}
	more, err := pairResults(ctx, o, nodes, gemel)
	list = append(list, more...)
	if err != nil {
		return err
	}
	many, err := scaleResults(ctx, o, nodes.bin)
	list = append(list, many...)
	if err != nil {
		return err
	}
	base, err := baselines(ctx, o.seconds)
	if err != nil {
		return err
	}
	list = append(list, base...)
	printTable(os.Stdout, list)
	fmt.Println("peer:", peer.flags)
	return jsonfile.Write(o.out, list)
}

// pairResults are those that need both nodes: what mirroring costs, and how long a pause is.
func pairResults(ctx context.Context, o options, nodes *pair, gemel *served) (list []result, err error) {
	w := workload{"mirrored_write_4k_qd1", initiator.OpWrite, 4096, 1, true}
	if strings.Contains(w.name, o.only) {
		m, err := nodes.mirrored(ctx, mirrorUUID, "mirror", o.size)
		if err != nil {
			return nil, err
		}
		defer m.close()
		if err := prefill(ctx, m); err != nil {
			return nil, err
		}
		unmirrored := *gemel
		unmirrored.name = "unmirrored"
		r, err := alternate(ctx, o, w, m, &unmirrored)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		list = append(list, r)
	}
	if strings.Contains("transfer_pause_ms crash_pause_ms", o.only) {
		more, err := measurePauses(ctx, nodes, o.events)
		return append(list, more...), err
	}
	return list, nil
}

// alternate measures both in turns, the first of a round changing, so that neither always meets the quieter machine.
func alternate(ctx context.Context, o options, w workload, gemel, peer *served) (result, error) {
	var samples [2][]sample
	pair := [2]*served{gemel, peer}
	for round := range o.rounds {
		for k := range 2 {
			i := (k + round) % 2
			for _, s := range pair { // the dirty pages of the round before are not this one's cost
				if err := s.dev.Flush(ctx); err != nil {
					return result{}, fmt.Errorf("%s: flush: %w", s.name, err)
				}
			}
			x, err := measure(ctx, pair[i], w, o.seconds)
			if err != nil {
				return result{}, fmt.Errorf("%s: %w", pair[i].name, err)
			}
			fmt.Printf("%-20s round %d  %-6s %10.1f %s  %8v/op  cpu %v/op\n", w.name, round+1, pair[i].name, x.rate, w.unit(),
				x.latency.Round(time.Microsecond), x.cpuPer.Round(100*time.Nanosecond))
			samples[i] = append(samples[i], x)
		}
	}
	return compare(w.name, w.unit(), samples[0], samples[1], peer), nil
}
