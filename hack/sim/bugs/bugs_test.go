package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

// testBase is where the test draws its seeds from.
const testBase = 1

func newRunner(t *testing.T) *runner {
	t.Helper()
	root, err := mutate.ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &runner{root: root, dir: t.TempDir(), base: testBase, hint: true}
}

// TestEveryBugIsCaught builds the pair and its simulated runtime with one mistake at a time. The
// unchanged code has to pass the same seeds.
func TestEveryBugIsCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds the simulator once for each bug")
	}
	out, clean := newRunner(t).all(t.Context(), bugs)
	var text strings.Builder
	table(&text, out)
	t.Log("\n" + text.String())
	for i := range out {
		if err := out[i].problem(); err != nil {
			t.Error(err)
		}
	}
	for i := range clean {
		if err := clean[i].unsound(); err != nil {
			t.Error(err)
		}
	}
}

// Every rule has at least one bug. R14 is a rule of the runtime, above the machine, which only
// holds commands for it, as for R10: most of its mistakes are those of the simulated runtime.
func TestEveryRuleHasABug(t *testing.T) {
	have := map[string]bool{}
	names := map[string]bool{}
	for _, b := range bugs {
		have[strings.TrimRight(b.rule, "abcd")] = true
		if names[b.name] {
			t.Errorf("%q is in the table twice", b.name)
		}
		names[b.name] = true
	}
	for _, rule := range []string{"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"} {
		if !have[rule] {
			t.Errorf("no bug breaks %s", rule)
		}
	}
}

// Each mistake still has its place in the code. The mistakes of the node layer are played by make
// sim-node-bugs, which takes some minutes: this test catches a mistake whose place has changed
// before that.
func TestBugsHaveTheirPlaces(t *testing.T) {
	r := newRunner(t)
	all := append(slices.Clone(bugs), nodeBugs...)
	var edits [][]mutate.Edit
	for i := range all {
		b := &all[i]
		if b.player == nil {
			b.player = pairs
		}
		if _, err := r.mutate("bug", b); err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
		edits = append(edits, b.edits())
	}
	c, err := mutate.NewTypes(t.Context(), r.root, edits...)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range all {
		if err := c.Check(edits[i]); err != nil {
			t.Errorf("%s: it does not build: %v", b.name, err)
		}
	}
	names := map[string]bool{}
	for _, b := range nodeBugs {
		if names[b.name] || b.player != nodes || b.seeds == 0 || len(b.flags) != 2 {
			t.Errorf("%q is in the table twice, or lacks its player, its bound or its kind of history", b.name)
		}
		names[b.name] = true
	}
}

// The unchanged code is played under every set of flags, on all seeds of the bugs with these flags.
func TestControlsCoverTheBugs(t *testing.T) {
	r := &runner{}
	cs := r.controls([]bug{{seeds: 5, hints: []uint64{1}}, {seeds: 9}, {flags: []string{"-x"}, hints: []uint64{2}}})
	if len(cs) != 2 || cs[0].seeds != 9 || len(cs[0].hints) != 1 || cs[1].seeds != maxSeeds || cs[1].hints[0] != 2 {
		t.Fatalf("%+v", cs)
	}
}

// A seed that caught a bug counts if the unchanged code passes it, under the same flags.
func TestCatchesAreConfirmed(t *testing.T) {
	x := bug{flags: []string{"-x"}}
	cs := confirmations([]outcome{{bug: x, seed: 3, caught: "lost write"}, {bug: bug{skip: []uint64{9}}, seed: 4, caught: "stale read"}, {bug: x}})
	if len(cs) != 2 || !slices.Equal(cs[0].hints, []uint64{3}) || cs[0].seeds != confirmDrawn+1 || !slices.Equal(cs[1].hints, []uint64{4}) || !slices.Equal(cs[1].skip, []uint64{9}) {
		t.Fatalf("%+v", cs)
	}
}

func TestSurvivorsAreReported(t *testing.T) {
	if (&outcome{seeds: 3}).problem() == nil || (&outcome{caught: "x"}).problem() != nil || (&outcome{err: errors.New("it could not be tried")}).problem() == nil {
		t.Error("a bug counts as caught only if a check failed")
	}
	if (&outcome{caught: "x"}).unsound() == nil || (&outcome{seeds: 3}).unsound() != nil {
		t.Error("the unchanged code has to pass")
	}
}
