package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// bench is a run: what it has started, by name, is started when a case first asks for it and ends
// after the last case that uses it.
type bench struct {
	o        options
	rig      *rig.Rig
	baseBin  string
	pairs    map[string]*rig.Pair
	served   map[string]*rig.Served
	closers  map[string][]func() error // by system
	tgtd     *rig.Tgt
	groups   *groups // of the curves; nil: not started
	rotation *groups // LUNs over members of backing volumes; nil: not started
	skipped  []string
}

// Systems. Those of gemel-target differ from the default case in one thing each.
const (
	sysDefault    = "default"    // mirrored, mutual TLS, XFS
	sysEvents     = "events"     // the default case once more, for what restarts its nodes: it has few LUNs to compare afterwards
	sysSupervised = "supervised" // like events, and each node has a supervisor
	sysPlain      = "plain"      // without TLS on the link
	sysTmpFS      = "tmpfs"      // in memory
	sysUnchecked  = "unchecked"  // without checksums of blocks
	sysTwin       = "twin"       // like unchecked, in processes and on filesystems of its own
	sysUnmirrored = "unmirrored" // one replica; part of the default pair
	sysBase       = "base"       // the default case of the commit that is compared with
	sysTgt        = "tgt"
	sysQSD        = "qsd"
	sysQSDTLS     = "qsd_tls"
	sysBaseTmpFS  = "base_tmpfs"
	sysHops       = "hops"
	sysHopsTLS    = "hops_tls"
)

func newBench(ctx context.Context, o options, log *slog.Logger) (b *bench, err error) {
	b = &bench{o: o, pairs: map[string]*rig.Pair{}, served: map[string]*rig.Served{}, closers: map[string][]func() error{}}
	dir, err := os.MkdirTemp("", "gemel-bench-bin-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin, err := harness.Build(ctx, dir, "./cmd/gemel-target")
	if err != nil {
		return nil, err
	}
	if b.rig, err = rig.New(o.dir, bin, log); err != nil {
		return nil, err
	}
	if o.base != "" {
		b.baseBin = b.rig.Lab.Path("bin", "gemel-target-base")
		if err := buildCommit(ctx, o.base, b.rig.Lab.Path("base"), b.baseBin); err != nil {
			return nil, errors.Join(err, b.rig.Close())
		}
	}
	return b, nil
}

// buildCommit compiles gemel-target as it was at a commit.
func buildCommit(ctx context.Context, commit, dir, out string) error {
	script := `mkdir -p "$2" && git archive "$1" | tar -x -C "$2" && cd "$2" && go build -o "$3" ./cmd/gemel-target`
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script, "bash", commit, dir, out)
	cmd.Dir = harness.Root()
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("-base %s: %w\n%s", commit, err, b)
	}
	return nil
}

func (b *bench) close() error {
	var errs []error
	for name := range b.closers {
		errs = append(errs, b.end(name))
	}
	return errors.Join(append(errs, b.rig.Close())...)
}

// end closes a system with everything that was opened of it.
func (b *bench) end(name string) error {
	var errs []error
	for _, f := range slices.Backward(b.closers[name]) {
		errs = append(errs, f())
	}
	delete(b.closers, name)
	for key := range b.served {
		if key == name || strings.HasPrefix(key, name+"/") {
			delete(b.served, key)
		}
	}
	delete(b.pairs, name)
	return errors.Join(errs...)
}

// onEnd has f called when a system ends.
func (b *bench) onEnd(system string, f func() error) {
	b.closers[system] = append(b.closers[system], f)
}

// keepOpen closes a device with its system.
func (b *bench) keepOpen(system string, d load.Device) {
	b.onEnd(system, func() error { rig.CloseDevice(d); return nil })
}

// pairSpace is what each node of a pair has: sparse, and most of it for the LUN with many extents.
const pairSpace = 24 << 30

// pair starts a pair, once.
func (b *bench) pair(ctx context.Context, name string) (*rig.Pair, error) {
	if p := b.pairs[name]; p != nil {
		return p, nil
	}
	o := rig.PairOptions{Name: name, Size: pairSpace}
	switch name {
	case sysDefault:
		o.Unmirrored = b.o.size
	case sysEvents:
	case sysSupervised:
		o.Supervisors = true
	case sysPlain:
		o.Plain = true
	case sysUnchecked, sysTwin:
		o.Args = []string{"--no-checksums"}
	case sysTmpFS:
		o.FS, o.Size = rig.TmpFS, 2*b.o.size+256<<20
	case sysBase:
		o.Binary = b.baseBin
	case sysBaseTmpFS:
		o.Binary, o.FS, o.Size = b.baseBin, rig.TmpFS, 2*b.o.size+256<<20
	default:
		return nil, fmt.Errorf("bench: no pair %q", name)
	}
	return b.startPair(ctx, o)
}

func (b *bench) startPair(ctx context.Context, o rig.PairOptions) (*rig.Pair, error) {
	fmt.Printf("starting a pair: %s\n", o.Name)
	p, err := b.rig.StartPair(ctx, o)
	if err != nil {
		return nil, err
	}
	b.pairs[o.Name] = p
	b.onEnd(o.Name, p.Close)
	return p, nil
}

// system opens a system's filled LUN, once.
func (b *bench) system(ctx context.Context, name string) (s *rig.Served, err error) {
	owner, key := name, name // what it ends with
	if name == sysUnmirrored {
		owner, key = sysDefault, sysDefault+"/"+name
	}
	if s := b.served[key]; s != nil {
		return s, nil
	}
	switch name {
	case sysUnmirrored:
		var p *rig.Pair
		if p, err = b.pair(ctx, owner); err == nil {
			s, err = p.Unmirrored(ctx)
		}
	case sysTgt:
		s, err = b.tgtLUN(ctx, b.o.size)
	case sysQSD, sysQSDTLS:
		s, err = b.startQSD(ctx, name)
	case sysHops, sysHopsTLS:
		s, err = b.startHops(ctx, name)
	default:
		s, err = b.pairLUN(ctx, name, "hot", b.o.size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.keepOpen(owner, s.Device)
	b.served[key] = s
	if name == sysHops || name == sysHopsTLS { // they keep nothing
		return s, nil
	}
	return s, b.fill(ctx, s)
}

// fill writes a device once, and says so: it takes a while.
func (b *bench) fill(ctx context.Context, s *rig.Served) error {
	begun := time.Now()
	if err := load.Fill(ctx, s.Device); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	fmt.Printf("filled %d MiB of %s with random data and read it back: %.1f s\n", s.Size()>>20, s.Name, time.Since(begun).Seconds())
	return nil
}

func (b *bench) pairLUN(ctx context.Context, pair, lun string, size int64) (*rig.Served, error) {
	p, err := b.pair(ctx, pair)
	if err != nil {
		return nil, err
	}
	l, err := p.CreateLUN(ctx, lun, size)
	if err != nil {
		return nil, err
	}
	return l.Serve(ctx, pair, rig.Both)
}

// skip says that something is not measured, and why.
func (b *bench) skip(what string, err error) {
	line := fmt.Sprintf("%s: %v", what, err)
	if slices.Contains(b.skipped, line) {
		return
	}
	fmt.Println("skipped:", line)
	b.skipped = append(b.skipped, line)
}

// identify says what is measured, and on what.
func (b *bench) identify(ctx context.Context) results.Report {
	git := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = harness.Root()
		out, _ := cmd.Output()
		return strings.TrimSpace(string(out))
	}
	r := results.Report{Commit: git("rev-parse", "--short", "HEAD"), Base: b.o.base, Date: time.Now().UTC().Format(time.DateOnly), Quick: b.o.quick,
		Machine: fmt.Sprintf("%d processors, %s", runtime.NumCPU(), cpuModel())}
	if git("status", "--porcelain") != "" {
		r.Commit += " with changes"
	}
	return r
}

func cpuModel() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for l := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return filepath.Base(runtime.GOARCH)
}
