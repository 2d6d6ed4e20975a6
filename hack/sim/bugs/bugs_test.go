package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testBase is where the test draws its seeds from.
const testBase = 1

func newRunner(t *testing.T) *runner {
	t.Helper()
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &runner{root: root, dir: t.TempDir(), base: testBase, hint: true}
}

// TestEveryBugIsCaught builds the pair with one mistake at a time. The unchanged code has to pass the same seeds.
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

// Every rule has at least one bug. R14 is the runtime's, above the machine: of it the machine has the holding of commands,
// which R10 shares.
func TestEveryRuleHasABug(t *testing.T) {
	have := map[string]bool{}
	names := map[string]bool{}
	for _, b := range bugs {
		have[strings.TrimRight(b.rule, "abcd")] = true
		if names[b.name] {
			t.Errorf("%q stands there twice", b.name)
		}
		names[b.name] = true
	}
	for _, rule := range []string{"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12", "R13", "R14"} {
		if !have[rule] {
			t.Errorf("no bug breaks %s", rule)
		}
	}
}

// A bug whose place has moved is an error, not a bug that nobody catches.
func TestTextMustOccurOnce(t *testing.T) {
	r := &runner{root: t.TempDir(), dir: t.TempDir()}
	dir := filepath.Join(r.root, "target", "pair")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x.go"), []byte("one two two"), 0o600); err != nil {
		t.Fatal(err)
	}
	for old, want := range map[string]error{"one": nil, "two": errText, "three": errText} {
		if _, err := r.mutate("0", &bug{file: "x.go", old: old, new: "y"}); !errors.Is(err, want) {
			t.Errorf("%q: %v", old, err)
		}
	}
	broken, err := os.ReadFile(filepath.Join(r.dir, "0-x.go"))
	if err != nil || string(broken) != "y two two" {
		t.Errorf("%q %v", broken, err)
	}
	// A mistake that takes several changes: all of them, in one file or in two.
	if err := os.WriteFile(filepath.Join(dir, "z.go"), []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.mutate("1", &bug{file: "x.go", old: "one", new: "1", more: []edit{{"x.go", "1 two", "1 2"}, {"z.go", "four", "4"}}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"1-x.go": "1 2 two", "1-z.go": "4"} {
		if got, err := os.ReadFile(filepath.Join(r.dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if _, err := r.mutate("2", &bug{file: "x.go", old: "one", new: "1", more: []edit{{"z.go", "five", "5"}}}); !errors.Is(err, errText) {
		t.Error(err)
	}
}

// The unchanged code is played under every set of flags, on all that its bugs are played on.
func TestControlsCoverTheBugs(t *testing.T) {
	r := &runner{}
	cs := r.controls([]bug{{seeds: 5, hints: []uint64{1}}, {seeds: 9}, {flags: []string{"-x"}, hints: []uint64{2}}})
	if len(cs) != 2 || cs[0].seeds != 9 || len(cs[0].hints) != 1 || cs[1].seeds != maxSeeds || cs[1].hints[0] != 2 {
		t.Fatalf("%+v", cs)
	}
}

func TestSurvivorsAreReported(t *testing.T) {
	if (&outcome{seeds: 3}).problem() == nil || (&outcome{caught: "x"}).problem() != nil || (&outcome{err: errText}).problem() == nil {
		t.Error("a bug counts as caught only if a check failed")
	}
	if (&outcome{caught: "x"}).unsound() == nil || (&outcome{seeds: 3}).unsound() != nil {
		t.Error("the unchanged code has to pass")
	}
}
