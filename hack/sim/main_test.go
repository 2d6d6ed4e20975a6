package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/sim"
)

func TestManyWritesItsReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "sim.json")
	var w bytes.Buffer
	if err := many(t.Context(), &w, &options{seeds: 5, base: 7, procs: 2, out: path}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"seeds", "violations", "faults", "uncovered_branches", "histories_per_second"} {
		if !bytes.Contains(b, []byte(`"`+key+`"`)) {
			t.Errorf("the report has no %q", key)
		}
	}
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Seeds != 5 || r.Base != 7 || r.Violations != 0 || r.Operations < 500 || r.Events < 5000 || len(r.Faults) == 0 ||
		r.PerSecond <= 0 || !strings.Contains(w.String(), "violations: 0") {
		t.Fatalf("%+v\n%s", r, w.String())
	}
}

// A run from one base plays the same histories, no matter how many run at a time.
func TestBaseDecidesEverything(t *testing.T) {
	a := play(t.Context(), &bytes.Buffer{}, &options{seeds: 6, base: 9, procs: 1})
	b := play(t.Context(), &bytes.Buffer{}, &options{seeds: 6, base: 9, procs: 3})
	if a.Events != b.Events || a.Operations != b.Operations || a.Stats != b.Stats || a.Marks != b.Marks {
		t.Fatalf("%d and %d events, %d and %d operations", a.Events, b.Events, a.Operations, b.Operations)
	}
}

func TestTriedSeedsComeFirst(t *testing.T) {
	seeds, err := parseSeeds("5,6")
	if err != nil || !slices.Equal(seeds, []uint64{5, 6}) {
		t.Fatal(seeds, err)
	}
	if _, err := parseSeeds("5,x"); err == nil {
		t.Fatal("x is no seed")
	}
	got := play(t.Context(), &bytes.Buffer{}, &options{seeds: 2, base: 9, procs: 1, try: seeds})
	want := sim.Run(sim.Config{Seed: 5}).Events + sim.Run(sim.Config{Seed: 6}).Events
	if got.Events != want {
		t.Fatalf("%d events, not %d", got.Events, want)
	}
}

func TestOnePrintsItsHistory(t *testing.T) {
	var w bytes.Buffer
	if err := one(&w, sim.Config{}, 5); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"paired", "FAULT", "arbiter: version 1 epoch 1 names ab", "-> ok"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("%q is missing from the trace", want)
		}
	}
}

// Requested kinds of faults are in the history, and in the command that replays it.
func TestKindsCanBeAskedFor(t *testing.T) {
	kinds, err := parseKinds("disk restored,kill")
	if err != nil || !slices.Equal(kinds, []string{"disk restored", "kill"}) {
		t.Fatal(kinds, err)
	}
	if _, err := parseKinds("bad luck"); !errors.Is(err, errKind) {
		t.Fatal(err)
	}
	cfg := sim.Config{With: kinds}
	if got := flags(&cfg); got != `-with "disk restored,kill" ` || flags(&sim.Config{}) != "" {
		t.Fatal(got)
	}
	if r := play(t.Context(), &bytes.Buffer{}, &options{seeds: 5, base: 9, procs: 1, cfg: cfg}); r.Faults["kill"] < 5 {
		t.Fatalf("%v", r.Faults)
	}
}

func TestOptionsMustMakeSense(t *testing.T) {
	for _, o := range []options{{seeds: 0, procs: 1}, {seeds: 1, procs: 0}} {
		if err := many(t.Context(), &bytes.Buffer{}, &o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
