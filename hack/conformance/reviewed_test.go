package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReviewedList(t *testing.T) {
	if _, err := readReviewed("reviewed.txt"); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"A.B failed", "A.B passed because", "A.B skipped x\nA.B failed y"} {
		p := filepath.Join(t.TempDir(), "list")
		if err := os.WriteFile(p, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readReviewed(p); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestDeviationsFromTheReviewedList(t *testing.T) {
	list := map[string]expectation{
		"A.skips":     {skipped, "x"},
		"A.fails":     {failed, "x"},
		"chap:A.chap": {skipped, "x"},
		"A.gone":      {skipped, "x"},
	}
	results := []result{{"A.ok", passed, ""}, {"A.skips", skipped, ""}, {"A.fails", failed, ""}, {"A.chap", passed, ""},
		{"A.gone", skipped, ""}}
	if d := deviations(results, list, "plain"); len(d) != 0 {
		t.Fatalf("%q", d)
	}
	if d := deviations(results, list, "chap"); len(d) != 1 {
		t.Fatalf("%q", d)
	}
	for i, o := range []outcome{skipped, passed, skipped, failed} {
		worse := append([]result(nil), results...)
		worse[i].outcome = o
		if d := deviations(worse, list, "plain"); len(d) != 1 {
			t.Errorf("%s as %s: %q", worse[i].name, o, d)
		}
	}
	if d := deviations(results[:4], list, "plain"); len(d) != 1 {
		t.Errorf("a test that did not run: %q", d)
	}
}
