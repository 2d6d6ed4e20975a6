package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/story"
)

// Sizes.
const (
	gib        = int64(1) << 30
	volumeSize = 2 * gib
	grownSize  = 3 * gib
	imageSize  = 16 * gib // of a node's filesystem: sparse
)

// rig is everything that a run has made.
type rig struct {
	opt    options
	tell   *story.Teller
	lab    *lab.Lab
	why    error // why there is no CSI and no mount; nil if there is
	bin    [2]string
	pair   *harness.Pair
	store  storage
	meter  *load.Meter
	report *Report

	vols      []*volume // created and not destroyed
	used      []*volume // of those, created and not released
	snapshots []string
	streams   []*load.Stream
	note      atomic.Pointer[string] // more for the live line
	places    layouts                // where the streams' files are on their LUNs
}

// run sets the rig up, runs body and cleans up in any case. The report is written if the story
// got as far as having one.
func run(ctx context.Context, opt options, name string, steps int, body func(context.Context, *rig) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, opt.timeout, fmt.Errorf("not done within %v", opt.timeout))
	defer cancel()
	r := &rig{opt: opt, tell: story.New(os.Stdout, steps), meter: load.NewMeter(phaseFill)}
	r.report = newReport()
	var swept []string
	if r.lab, swept, err = lab.New(opt.dir); err != nil {
		return err
	}
	for _, s := range swept {
		r.tell.Fact("cleaned up what an earlier, killed run had left: %s", s)
	}
	begun := time.Now()
	err = body(ctx, r)
	if cause := context.Cause(ctx); err != nil && cause != nil { // what failed did so because of that
		if err = errors.Join(cause, err); errors.Is(cause, errInterrupted) {
			err = errInterrupted
		}
	}
	r.report.finish(r, time.Since(begun), err)
	failed := err != nil || len(r.report.verdict()) > 0
	if failed && !errors.Is(err, errInterrupted) {
		r.keepLogs(filepath.Join(opt.out, name+"-logs"))
	}
	if cerr := r.close(failed); cerr != nil {
		err = errors.Join(err, fmt.Errorf("cleaning up: %w", cerr))
	}
	if errors.Is(err, errInterrupted) {
		return err
	}
	path := filepath.Join(opt.out, name+".json")
	if werr := jsonfile.Write(path, r.report); werr != nil {
		return errors.Join(err, werr)
	}
	r.report.print(r.tell, path)
	if problems := r.report.verdict(); len(problems) > 0 {
		err = errors.Join(append([]error{err}, problems...)...)
	}
	return err
}

// working shows a line with the seconds spent while f runs.
func (r *rig) working(what string, f func() error) error {
	begun := time.Now()
	stop := r.tell.Live(func() string { return fmt.Sprintf("%s ... %.0f s", what, time.Since(begun).Seconds()) })
	defer stop()
	return f()
}

// build compiles what the run needs.
func (r *rig) build(ctx context.Context) error {
	r.why = lab.CanMount()
	if r.opt.raw {
		r.why = errors.Join(errors.New("raw I/O was asked for"), r.why)
	}
	pkgs := []string{"./cmd/gemel-target"}
	if r.why == nil {
		pkgs = append(pkgs, "./cmd/gemel-csi")
	}
	for i, p := range pkgs {
		err := r.working("go build "+p, func() (err error) { r.bin[i], err = r.lab.Build(ctx, harness.Root(), p); return })
		if err != nil {
			return err
		}
	}
	return nil
}

// startPair starts both nodes, each on a filesystem of its own if possible.
func (r *rig) startPair(ctx context.Context) error {
	o := harness.Options{Dir: r.lab.Path("pair"), Binary: r.bin[0], Supervised: true}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return err
	}
	why := lab.CanMount()
	for i, n := range harness.Names {
		dir := r.lab.Path("node-" + n)
		if why == nil {
			var err error
			if dir, err = r.lab.XFS(ctx, "node-"+n, imageSize); err != nil {
				return err
			}
		}
		o.State[i] = filepath.Join(dir, "state")
	}
	if why != nil {
		r.tell.Fact("no XFS images (%v): the nodes keep their data in plain folders, so a snapshot may have to copy", why)
	}
	var err error
	if r.pair, err = harness.New(o); err != nil {
		return err
	}
	if err := within(ctx, 20*time.Second, r.pair.Start); err != nil {
		return err
	}
	s, err := r.pair.Status(ctx, 0)
	if err != nil {
		return err
	}
	for i, n := range harness.Names {
		r.tell.Fact("node %s: pid %d, iSCSI portal %s, control %s", n, r.pair.PID(i), r.pair.ISCSI[i], r.pair.Control[i])
	}
	r.tell.Fact("in sync: epoch %d, members %v, snapshots share extents: %v", s.Epoch, s.Members, s.Reflink)
	return nil
}

// startStorage starts the CSI plugin, or does without.
func (r *rig) startStorage(ctx context.Context) error {
	if r.why != nil {
		r.report.Mode = "raw I/O"
		r.store = &rawStorage{pair: r.pair, host: "iqn.2026-11.storage.gemel.demo:worker", wait: r.opt.wait}
		r.tell.Fact("no CSI plugin and no mounted volume: %v", r.why)
		return nil
	}
	r.report.Mode = "CSI"
	s, err := startCSI(ctx, r.lab, r.bin[1], r.pair.Control, r.opt.wait)
	if err != nil {
		return err
	}
	r.store = s
	r.tell.Fact("%s on a Unix socket; this machine is node %s", s.k.Plugin, s.k.NodeID)
	return nil
}

func within(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return f(ctx)
}

// keepLogs copies the logs of the processes to a folder that stays.
func (r *rig) keepLogs(dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.tell.Problem("logs: %v", err)
		return
	}
	var kept []string
	for _, f := range logFiles(r.lab.Dir) {
		name := strings.ReplaceAll(strings.TrimPrefix(f, r.lab.Dir+"/"), "/", "-")
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			r.tell.Problem("logs: %v", err)
			continue
		}
		kept = append(kept, name)
		if len(b) > 0 {
			r.tell.Problem("the end of %s:\n%s", name, tail(b, 2000))
		}
	}
	r.tell.Fact("logs are kept in %s: %v", dir, kept)
}

// logFiles finds the logs below a folder, without going into what may be mounted from a volume.
func logFiles(dir string) (out []string) {
	for _, pattern := range []string{"*.log", "pair/*.log", "csi/*.log", "csi/*/*.log", "csi/*/*/*.log"} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are well-formed
		out = append(out, files...)
	}
	return out
}

func tail(b []byte, n int) string {
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return string(b)
}

// close ends everything in order, and what does not end in order by force. A failed run is not
// waited for as long.
func (r *rig) close(failed bool) error {
	stop := r.tell.Live(func() string { return "cleaning up" })
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var errs []error
	orderly := true
	for _, s := range r.streams {
		if err := within(ctx, 5*time.Second, s.Stop); err != nil {
			orderly = false // I/O hangs: only the end of the processes frees it
		}
	}
	if orderly && r.pair != nil && r.anyNode(ctx) {
		for _, s := range r.streams {
			if err := s.Target.Close(); !errors.Is(err, os.ErrClosed) {
				errs = append(errs, err)
			}
		}
		for _, v := range r.used {
			if err := r.store.release(ctx, v); err != nil {
				errs = append(errs, fmt.Errorf("release %s: %w", v.name, err))
			}
		}
	}
	if r.store != nil {
		errs = append(errs, r.store.close())
	}
	if r.pair != nil {
		if failed {
			var wg sync.WaitGroup
			for i := range harness.Names {
				wg.Go(func() { _ = r.pair.Kill(i) })
			}
			wg.Wait()
		}
		errs = append(errs, r.pair.Close())
	}
	if failed {
		errs = nil // what an unfinished run cannot undo in order is undone next
	}
	errs = append(errs, r.lab.Close())
	for _, s := range r.streams {
		if err := within(ctx, 10*time.Second, s.Stop); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// anyNode reports that at least one node answers; a node that was killed a moment ago may be about
// to be replaced.
func (r *rig) anyNode(ctx context.Context) bool {
	for i := range harness.Names {
		if r.pair.PID(i) != 0 && syscall.Kill(r.pair.PID(i), 0) == nil {
			if _, err := r.pair.Status(ctx, i); err == nil {
				return true
			}
		}
	}
	return false
}
