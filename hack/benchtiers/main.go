// Command benchtiers measures tiers that arrange themselves: a pair whose backing volume has one
// member with 8 ms and one with about 0.1 ms for a read, under loads of one host. Nothing of the
// policy is made faster for it: a node decides once a minute. Page caches are dropped four times a
// second all the time, so that no read is answered from memory because it came a second time.
//
// It needs root: it runs itself in a network and a mount namespace of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

type options struct {
	dir, out string
	only     string
	verbose  bool
}

// results of all loads. Moves are those of the node that owns the LUN. Restarts are of nodes'
// processes, which nothing here asks for: the machine has stalled for longer than the lease.
type results struct {
	Restarts int `json:"restarts"`
	*hotResult
	*uniformResult
	*swingResult
	*policyResult
}

func main() {
	rig.HopMain()
	var o options
	flag.StringVar(&o.dir, "dir", "", "folder for all files during the run (default: the folder for temporary files)")
	flag.StringVar(&o.out, "out", "out/tiers.json", "results")
	flag.StringVar(&o.only, "only", "", "one load only: hot, uniform, swing or policy")
	flag.BoolVar(&o.verbose, "v", false, "show the clients' path events")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := 0, lab.CanMount()
	switch {
	case err != nil:
	case netns.Isolated():
		err = run(ctx, os.Stdout, o)
	default:
		stop() // the copy takes interrupts
		code, err = netns.Isolate(context.Background())
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchtiers:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, w io.Writer, o options) (err error) {
	if b, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, b)
	}
	level := slog.LevelError
	if o.verbose {
		level = slog.LevelInfo
	}
	dir, err := os.MkdirTemp(o.dir, "benchtiers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin, err := harness.Build(ctx, dir, "./cmd/gemel-target")
	if err != nil {
		return err
	}
	r, err := rig.New(dir, bin, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	dropping, stop := context.WithCancel(ctx)
	dropped := make(chan error, 1)
	go func() { dropped <- dropCaches(dropping) }()
	defer func() { stop(); err = errors.Join(err, <-dropped) }()

	var all results
	for _, x := range []struct {
		name string
		play func(context.Context, *bench) error
	}{
		{"hot", func(ctx context.Context, b *bench) (err error) { all.hotResult, err = b.hot(ctx); return err }},
		{"uniform", func(ctx context.Context, b *bench) (err error) { all.uniformResult, err = b.uniform(ctx); return err }},
		{"swing", func(ctx context.Context, b *bench) (err error) { all.swingResult, err = b.swing(ctx); return err }},
		{"policy", func(_ context.Context, b *bench) (err error) { all.policyResult, err = b.policy(); return err }},
	} {
		if o.only != "" && o.only != x.name {
			continue
		}
		b := &bench{rig: r, name: x.name, w: w, restarts: &all.Restarts}
		if err := errors.Join(x.play(ctx, b), b.close()); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		if err := jsonfile.Write(o.out, all); err != nil {
			return err
		}
	}
	return nil
}

// dropCaches keeps the page cache from answering.
func dropCaches(ctx context.Context) error {
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
				return fmt.Errorf("drop caches: %w", err)
			}
		}
	}
}
