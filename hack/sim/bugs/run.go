package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

// outcome is the result of playing a bug.
type outcome struct {
	bug    bug
	seeds  int    // histories played, the catching one included
	seed   uint64 // the one that caught it
	failed []uint64
	caught string // by which check; empty: it survived
	known  bool   // by a known seed, after all drawn seeds had passed
	took   time.Duration
	err    error // it could not be tried
}

// runner builds and plays mutants of one module.
type runner struct {
	root string // of the module
	dir  string // for mutants, overlays and binaries
	base uint64
	hint bool // play a bug's hints first
}

// all plays every bug, several at a time, and the unchanged code. A seed on which the unchanged
// code fails proves nothing: it is an error of its own.
//
// With hints on, the unchanged code plays the seeds that caught a bug, and few others, after the
// bugs. Otherwise it plays every seed that a bug may meet, before the bugs, which are not played on
// the seeds on which it fails. That takes ten times as long as the bugs do.
func (r *runner) all(ctx context.Context, bs []bug) (out []outcome, clean []outcome) {
	if r.hint {
		out = r.each(ctx, "bug", bs)
		return out, r.each(ctx, "control", confirmations(out))
	}
	clean = r.each(ctx, "control", r.controls(bs))
	for i := range bs {
		for j := range clean {
			if slices.Equal(clean[j].bug.flags, bs[i].flags) {
				bs[i].skip = append(bs[i].skip, clean[j].failed...)
			}
		}
	}
	return r.each(ctx, "bug", bs), clean
}

// confirmDrawn is how many seeds the unchanged code plays under each set of flags beside those that
// caught a bug.
const confirmDrawn = 40

// confirmations are the unchanged code under every set of flags that a bug was played with, with
// the seeds that caught these bugs.
func confirmations(out []outcome) (cs []bug) {
	for _, o := range out {
		i := slices.IndexFunc(cs, func(c bug) bool { return slices.Equal(c.flags, o.bug.flags) && c.player == o.bug.player })
		if i < 0 {
			i = len(cs)
			cs = append(cs, bug{player: o.bug.player, name: "unchanged " + strings.Join(o.bug.flags, " "), flags: o.bug.flags, seeds: confirmDrawn})
		}
		if o.caught != "" && o.seed != 0 {
			cs[i].hints = append(cs[i].hints, o.seed)
			cs[i].seeds++
		}
		cs[i].skip = append(cs[i].skip, o.bug.skip...)
	}
	return cs
}

func (r *runner) each(ctx context.Context, name string, bs []bug) []outcome {
	return mutate.Each(bs, func(i int, b bug) outcome { return r.try(ctx, fmt.Sprintf("%s-%d", name, i), b) })
}

// controls are the unchanged code under every set of flags that a bug uses, with all of its seeds.
func (r *runner) controls(bs []bug) (out []bug) {
	var sets []string
	for _, b := range bs {
		set := strings.Join(b.flags, " ")
		c := bug{player: b.player, name: "unchanged " + set, flags: b.flags, seeds: b.bound()}
		i := slices.Index(sets, set)
		if i < 0 {
			i = len(sets)
			sets = append(sets, set)
			out = append(out, c)
		}
		out[i].seeds = max(out[i].seeds, b.bound())
		out[i].hints = append(out[i].hints, b.hints...)
		out[i].skip = append(out[i].skip, b.skip...)
	}
	return out
}

func (b *bug) bound() int {
	if b.seeds > 0 {
		return b.seeds
	}
	return maxSeeds
}

// mutate returns the overlay that puts the broken files in place.
func (r *runner) mutate(name string, b *bug) (overlay string, err error) {
	return mutate.Overlay(r.root, r.dir, name, b.edits())
}

// edits are the changes that the mistake needs, in files below the module's root.
func (b *bug) edits() []mutate.Edit {
	edits := append([]mutate.Edit{{File: b.file, Old: b.old, New: b.new}}, b.more...)
	for i := range edits {
		edits[i].File = filepath.Join("dataplane", b.player.folder, edits[i].File)
	}
	return edits
}

// player is a program that plays histories.
type player struct {
	folder string   // of the mistakes, in target
	build  []string // what go is asked for
	target string   // the package of the program
	first  []string // arguments before all others
	dash   string   // before the names of its flags
}

// pairs plays pair.Machine, runtimes the same with mistakes of the simulated runtime, nodes whole
// nodes.
var (
	pairs    = simulator("pair")
	runtimes = simulator("sim")
	nodes    = &player{build: []string{"test", "-c", "-p", "1"}, target: "./dataplane/nodesim",
		first: []string{"-test.run", "^TestFreshSeeds$", "-test.timeout", "0"}, dash: "-nodesim."}
)

func simulator(folder string) *player {
	return &player{folder: folder, build: []string{"build", "-p", "1"}, target: "./hack/sim", first: []string{"-procs", "1"}, dash: "-"}
}

// playTime bounds the play of one bug: a machine that never comes to rest is caught too. It is
// long, since a computer that is busy otherwise plays few histories.
const playTime = 15 * time.Minute

func (r *runner) try(ctx context.Context, name string, b bug) (o outcome) {
	start := time.Now()
	defer func() { o.took = time.Since(start) }()
	if b.player == nil {
		b.player = pairs
	}
	o.bug = b
	bin := filepath.Join(r.dir, "sim-"+name)
	defer os.Remove(bin)
	args := append(slices.Clone(b.player.build), "-o", bin)
	if b.file != "" {
		overlay, err := r.mutate(name, &b)
		if err != nil {
			o.err = err
			return o
		}
		args = append(args, "-overlay", overlay)
	}
	build := exec.CommandContext(ctx, "go", append(args, b.player.target)...)
	build.Dir = r.root
	if text, err := build.CombinedOutput(); err != nil {
		o.err = fmt.Errorf("it does not build: %w\n%s", err, text)
		return o
	}
	if o.play(ctx, r, name, bin, b.bound(), r.hint || b.file == ""); o.survived() && len(b.hints) > 0 {
		// Only one history in tens of thousands catches this bug: the bound is too low for it, and
		// the known seed shows that the checks catch it.
		drawn := o.seeds
		o.play(ctx, r, name, bin, len(b.hints), true)
		o.seeds += drawn
		o.known = o.caught != ""
	}
	return o
}

// survived reports whether a bug was played and not caught.
func (o *outcome) survived() bool { return o.err == nil && o.caught == "" && o.bug.file != "" }

// play runs a binary with a number of histories, the known seeds first if hints are on.
func (o *outcome) play(ctx context.Context, r *runner, name, bin string, seeds int, try bool) {
	b := &o.bug
	report := filepath.Join(r.dir, "report-"+name+".json")
	dash := b.player.dash
	args := append(slices.Clone(b.player.first), dash+"seeds", strconv.Itoa(seeds), dash+"base", strconv.FormatUint(r.base, 10), dash+"out", report,
		dash+"skip", join(b.skip))
	args = append(args, b.flags...)
	if b.file != "" {
		args = append(args, dash+"first")
	}
	if try {
		args = append(args, dash+"try", join(b.hints))
	}
	limited, cancel := context.WithTimeout(ctx, playTime)
	defer cancel()
	text, err := exec.CommandContext(limited, bin, args...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case limited.Err() != nil && ctx.Err() == nil:
		o.seeds, o.caught = seeds, "it never comes to rest"
	case err != nil && !errors.As(err, &exit):
		o.err = err
	default:
		if err := o.read(report); err != nil {
			o.err = fmt.Errorf("%w\n%s", err, text)
		}
	}
}

func join(seeds []uint64) string {
	var parts []string
	for _, s := range seeds {
		parts = append(parts, strconv.FormatUint(s, 10))
	}
	return strings.Join(parts, ",")
}

// where is the head of a violation: seed and time.
var where = regexp.MustCompile(`^seed \d+ (at [0-9.]+ms: )?`)

func (o *outcome) read(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rep struct {
		Seeds  int      `json:"seeds"`
		Played int      `json:"histories"` // the same, of whole nodes
		Failed []uint64 `json:"failed_seeds"`
		First  string   `json:"first_violation"`
	}
	if err := json.Unmarshal(raw, &rep); err != nil {
		return err
	}
	o.seeds, o.failed = max(rep.Seeds, rep.Played), rep.Failed
	if len(rep.Failed) > 0 {
		o.seed, o.caught = rep.Failed[0], where.ReplaceAllString(rep.First, "")
	}
	return nil
}
