package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFewHistoriesAreWritten(t *testing.T) {
	var text strings.Builder
	file := filepath.Join(t.TempDir(), "out", "balance.json")
	if err := run(&text, 12, 1, file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(b), `"histories": 12`) || !strings.Contains(text.String(), "12 histories from seed 1") {
		t.Errorf("%v\n%s\n%s", err, b, text.String())
	}
	if err := run(&text, 0, 1, ""); err == nil {
		t.Error("no histories")
	}
}
