// Command demo tells Gemel's story on one machine: a volume on a pair of target nodes is written to
// while it is moved, while its owner is killed, comes back, and takes it again; then every
// acknowledged write is looked for.
//
//	go run ./hack/demo                     the story
//	go run ./hack/demo kill -n 20 --seed 7 either node killed at 20 random moments
//
// The exit status is 0 only if nothing was lost, nothing failed, both copies are identical and the
// pauses were short.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// options of both commands.
type options struct {
	dir     string        // for temporary files
	out     string        // folder of the results
	raw     bool          // no CSI, no mounts
	timeout time.Duration // of the whole run
	depth   int           // writes in flight on each volume
	wait    time.Duration // how long I/O waits while no node serves
	blocks  int           // of 4 KiB, written on each volume
	seed    uint64
	corrupt bool // flip a byte before the copies are compared
}

// errInterrupted is the cause of a cancelled run.
var errInterrupted = errors.New("interrupted")

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE) // the reader of our story may go first; cleaning up must not
	go func() {
		for n := 0; ; n++ {
			<-signals
			if n == 0 {
				fmt.Fprintln(os.Stderr, "\ninterrupted: cleaning up, a few seconds please")
				cancel(errInterrupted)
			} else {
				fmt.Fprintln(os.Stderr, "\nstill cleaning up, so that nothing is left behind")
			}
		}
	}()
	err := command().ExecuteContext(ctx)
	switch {
	case errors.Is(err, errInterrupted):
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var opt options
	root := &cobra.Command{
		Use:   "demo",
		Short: "A volume on a dual-node pair survives what can happen to it",
		Long: `Starts a pair of targets on loopback and the CSI plugin, writes to a mounted and to a raw block volume without pause, and
meanwhile moves them to the other node, kills that node, restarts it, resyncs, fails back, expands, snapshots and clones.
At the end every acknowledged write is read back through each node and the stores of both nodes are compared.

Needs root for mounts and loop devices; without, it does the same on raw I/O and says so.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), opt) },
	}
	var n int
	var seed string
	kill := &cobra.Command{
		Use:   "kill",
		Short: "Kill either node at random moments of the load",
		Long: `The same pair and load; either node is killed with SIGKILL at random moments and restarted each time: when both are in
sync, while it is resynced, or while it is the only one in sync. In that last case it alone holds the data: it is restarted
at once, and I/O waits for it, within the initiator's deadline.

Moments are counted in acknowledged writes, so that a seed names the same decisions on a fast and on a slow machine.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := parseSeed(seed)
			if err != nil {
				return err
			}
			opt.seed = s
			return runKill(cmd.Context(), opt, n)
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&opt.dir, "dir", "", "where temporary files go (default: the system's folder for them)")
	f.StringVar(&opt.out, "out", filepath.Join(harness.Root(), "out"), "folder for the results")
	f.BoolVar(&opt.raw, "raw", false, "raw I/O: no CSI plugin, no mounted volume")
	f.DurationVar(&opt.timeout, "timeout", 10*time.Minute, "give up after this long")
	f.DurationVar(&opt.wait, "io-deadline", 30*time.Second, "how long I/O waits while no node serves, before it fails")
	f.IntVar(&opt.depth, "depth", 8, "writes in flight on each volume")
	f.IntVar(&opt.blocks, "blocks", 16<<10, "blocks of 4 KiB written on each volume")
	f.BoolVar(&opt.corrupt, "corrupt-for-test", false, "flip a byte of one copy before they are compared")
	_ = f.MarkHidden("corrupt-for-test")
	kill.Flags().IntVarP(&n, "kills", "n", 20, "how many kills")
	kill.Flags().StringVar(&seed, "seed", "", "seed of the moments of the kills (default: a new one each time)")
	root.AddCommand(kill)
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		switch {
		case opt.depth < 1 || opt.depth > 128:
			return fmt.Errorf("--depth: %d is not in 1..128", opt.depth)
		case opt.wait < time.Second || opt.wait > time.Hour:
			return fmt.Errorf("--io-deadline: %v is not in 1s..1h", opt.wait)
		case opt.blocks < 256 || opt.blocks > 128<<10:
			return fmt.Errorf("--blocks: %d is not in 256..131072", opt.blocks)
		case n < 1 || n > 10000:
			return fmt.Errorf("--kills: %d is not in 1..10000", n)
		}
		return nil
	}
	return root
}
