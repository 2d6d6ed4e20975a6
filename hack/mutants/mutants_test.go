package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

// The guards and the tests of the table are where the table says. make mutants shows that the tests
// catch their mutants.
func TestMutantsHaveTheirPlacesAndTests(t *testing.T) {
	root, err := mutate.ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.String()] {
			t.Errorf("%s is in the table twice", m)
		}
		names[m.String()] = true
		if _, err := mutate.Overlay(root, t.TempDir(), "x", m.edits); err != nil {
			t.Errorf("%s: %v", m, err)
		}
		if !hasTest(t, filepath.Join(root, m.pkg), m.test) {
			t.Errorf("%s: %s has no test %s", m, m.pkg, m.test)
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^func ` + name + `\(t \*testing\.T\)`).Match(raw) {
			return true
		}
	}
	return false
}

// A mutant that does not build would be noticed only when the whole table is tried.
func TestMutantsBuild(t *testing.T) {
	root, err := mutate.ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var edits [][]mutate.Edit
	for _, m := range mutants {
		edits = append(edits, m.edits)
	}
	c, err := mutate.NewTypes(t.Context(), root, edits...)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if err := c.Check(m.edits); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
}

// Every hazard of the list has a guard that a test watches.
func TestEveryHazardHasAMutant(t *testing.T) {
	for h := 1; h <= 30; h++ {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.hazard == h }) {
			t.Errorf("hazard %d has no mutant", h)
		}
	}
}

// Only a test that failed has caught a mutant.
func TestOnlyAFailedTestCatchesAMutant(t *testing.T) {
	bad := exec.Command("false").Run()
	for _, c := range []struct {
		out    string
		err    error
		caught bool
		by     string
		fails  bool
	}{
		{"ok", nil, false, "", false},
		{"FAIL x [build failed]", bad, false, "", true},
		{"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b_c (0.00s)\n--- FAIL: TestD (0.00s)\n", bad, true, "TestA/b_c, TestD", false},
		{"x\npanic: test timed out after 1m", bad, true, "it does not end", false},
		{"panic: nil map", bad, true, "it panics", false},
		{"FAIL", bad, false, "", true},
		{"", errors.New("go is not there"), false, "", true},
	} {
		if caught, by, err := judge(c.out, c.err); caught != c.caught || by != c.by || (err != nil) != c.fails {
			t.Errorf("%q: %v %q %v", c.out, caught, by, err)
		}
	}
}

func TestSummaryCountsMutants(t *testing.T) {
	got := summarize([]outcome{{mutant: mutant{hazard: 2, name: "a"}, caught: true}, {mutant: mutant{hazard: 1, name: "b"}, caught: true},
		{mutant: mutant{hazard: 2, name: "c"}}, {mutant: mutant{hazard: 1, name: "d"}, caught: true}}, time.Minute)
	want := summary{Mutants: 4, Caught: 3, Hazards: []int{1}, Survived: []string{"hazard 2: c"}, Seconds: 60}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// A whole round on a small module: a mutant that is caught, one that survives, one that does not
// build, and a missing test.
func TestRoundOnASmallModule(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module x\n\ngo 1.24\n",
		"x/x.go":      "package x\n\n// F is at most 3.\nfunc F(n int) int { return min(n, 3) }\n",
		"x/x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) {\n\tif F(5) != 3 {\n\t\tt.Fatal(F(5))\n\t}\n}\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &runner{root: root, dir: t.TempDir(), report: func(outcome) {}}
	edit := func(text string) []mutate.Edit { return []mutate.Edit{{File: "x/x.go", Old: "min(n, 3)", New: text}} }
	ms := []mutant{{1, "no limit", edit("n"), "x", "TestF"}, {1, "another limit below", edit("min(n, 3, 4)"), "x", "TestF"}, {1, "nonsense", edit("m"), "x", "TestF"}}
	if err := r.control(t.Context(), ms); err != nil {
		t.Fatal(err)
	}
	out := r.all(t.Context(), ms)
	if !out[0].caught || out[0].by != "TestF" || out[1].caught || out[1].err != nil || out[2].caught || out[2].err == nil {
		t.Errorf("%+v", out)
	}
	if err := r.control(t.Context(), []mutant{{1, "", nil, "x", "TestG"}}); err == nil || !strings.Contains(err.Error(), "TestG") {
		t.Error(err)
	}
}
