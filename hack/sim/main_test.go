package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManyWritesItsReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "sim.json")
	var w bytes.Buffer
	if err := many(t.Context(), &w, 3, 7, path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Seeds != 3 || r.Base != 7 || r.Violations != 0 || r.Operations < 300 || len(r.Faults) == 0 || !strings.Contains(w.String(), "violations: 0") {
		t.Fatalf("%+v\n%s", r, w.String())
	}
}

func TestOnePrintsItsHistory(t *testing.T) {
	var w bytes.Buffer
	if err := one(&w, 5); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(w.String(), "paired") {
		t.Fatalf("%s", w.String())
	}
}

func TestSeedsMustBePositive(t *testing.T) {
	if err := many(t.Context(), &bytes.Buffer{}, 0, 1, ""); err == nil {
		t.Fatal("no history is no proof")
	}
}
