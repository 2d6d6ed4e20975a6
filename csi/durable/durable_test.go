package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteReplacesAndLeavesNothingBeside(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "x.json")
	for _, v := range []map[string]int{{"a": 1}, {"a": 2}} {
		if err := WriteJSON(p, v); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(p)
	if err != nil || string(raw) != "{\n  \"a\": 2\n}\n" {
		t.Fatalf("%q, %v", raw, err)
	}
	if st, _ := os.Stat(p); st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v", st.Mode())
	}
	if e, _ := os.ReadDir(dir); len(e) != 1 {
		t.Fatalf("left behind: %v", e)
	}
}

func TestFailedWriteKeepsTheOldContent(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "x.json")
	if err := WriteJSON(p, 1); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(p, make(chan int)); err == nil {
		t.Fatal("a channel was written")
	}
	// A folder in the place of the file makes the rename fail.
	q := filepath.Join(dir, "d")
	if err := os.MkdirAll(filepath.Join(q, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(q, 1); err == nil {
		t.Fatal("a folder was replaced")
	}
	if e, _ := os.ReadDir(dir); len(e) != 2 {
		t.Fatalf("left behind: %v", e)
	}
	if raw, _ := os.ReadFile(p); string(raw) != "1\n" {
		t.Fatalf("%q", raw)
	}
	if err := os.WriteFile(filepath.Join(dir, tempPrefix+"x.json-123"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTemp(dir); err != nil {
		t.Fatal(err)
	}
	if e, _ := os.ReadDir(dir); len(e) != 2 {
		t.Fatalf("after cleaning: %v", e)
	}
}
