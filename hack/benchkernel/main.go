// Command benchkernel measures Gemel beside the kernel's own storage, all of it in guests of an
// emulator: LIO, LIO over DRBD, and gemel-target, each served by guest s1 (and mirrored to s2) to
// one client outside. Run by `make bench-kernel`, which makes the guests.
//
// The systems take turns in every round, and LIO takes two: the ratio of a system to itself is what
// the run can resolve. Only ratios count.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// labEnv is the folder that hack/vm/up.sh prints.
const labEnv = "GEMEL_VM_LAB"

type options struct {
	lab     string
	out     string
	rounds  int
	seconds time.Duration
	limit   time.Duration
}

func main() {
	o := options{lab: os.Getenv(labEnv)}
	flag.StringVar(&o.out, "out", "out/bench-kernel.json", "file for the results")
	flag.IntVar(&o.rounds, "rounds", 6, "how often each system has its turn in each row; at least 3; with a multiple of the number of systems, each system follows each other equally often")
	flag.DurationVar(&o.seconds, "time", 2*time.Second, "how long a turn is, after a warm-up of a third of it; at least 100ms")
	flag.DurationVar(&o.limit, "limit", 20*time.Minute, "the whole run fails if it takes longer")
	flag.Parse()
	code, err := start(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchkernel:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func (o *options) check() error {
	var errs []error
	if o.lab == "" {
		errs = append(errs, fmt.Errorf("%s is not set: start it with make bench-kernel, or hack/vm/run.sh", labEnv))
	}
	if o.rounds < 3 {
		errs = append(errs, fmt.Errorf("-rounds: %d is less than 3: there would be no median and no spread", o.rounds))
	}
	if o.seconds < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("-time: %v is less than 100ms", o.seconds))
	}
	if o.limit <= 0 {
		errs = append(errs, fmt.Errorf("-limit: %v is not positive", o.limit))
	}
	return errors.Join(errs...)
}

// start runs everything in namespaces that end with the process.
func start(o options) (int, error) {
	if err := o.check(); err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !netns.Isolated() {
		return netns.Isolate(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("not done after %v (-limit)", o.limit))
	defer cancel()
	if err := run(ctx, o); err != nil {
		return 1, errors.Join(err, context.Cause(ctx))
	}
	return 0, nil
}

func run(ctx context.Context, o options) error {
	begun := time.Now()
	dir, err := os.MkdirTemp("", "gemel-bench-kernel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The guests' disks are in this machine's memory: other programs' writes to its disks are not
	// to be measured. The mount is seen by this process only, and goes with it.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6g"); err != nil {
		return fmt.Errorf("tmpfs for the guests' disks: %w", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	l, err := newLab(ctx, dir, o.lab)
	defer l.close()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	systems, skipped, err := l.systems(ctx, log)
	defer func() {
		for _, s := range systems {
			s.close()
		}
	}()
	if err != nil {
		return err
	}
	kernel, err := l.guests[0].Output(ctx, "uname", "-r")
	if err != nil {
		return err
	}
	r := newReport(o, kernel, systems, skipped)
	fmt.Print(r.head())
	for _, s := range systems {
		if err := s.fill(ctx); err != nil {
			return err
		}
	}
	for _, w := range workloads {
		x, err := measure(ctx, o, w, systems, l.settle)
		if err != nil {
			return err
		}
		r.add(w.name, x)
		fmt.Print(r.table(len(r.Rows) - 1))
	}
	r.Load[1], r.Seconds = loadAverage(), time.Since(begun).Seconds()
	fmt.Print(r.summary())
	return r.write(o.out)
}
