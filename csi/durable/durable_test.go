package durable

import (
	"os"
	"path/filepath"
	"strings"
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
	// A folder with the name of the file makes the rename fail.
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

func TestReadJSONNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var got map[string]int
	if there, err := ReadJSON(path, &got); there || err != nil {
		t.Fatal(there, err)
	}
	if err := WriteJSON(path, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	if there, err := ReadJSON(path, &got); !there || err != nil || got["a"] != 1 {
		t.Fatal(there, err, got)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if there, err := ReadJSON(path, &got); there || err == nil || !strings.Contains(err.Error(), path) {
		t.Fatal(there, err)
	}
}

// An incomplete file is never visible in the folder, and is removed after a failure.
func TestWriteByHidesIncompleteFiles(t *testing.T) {
	dir, temp := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteBy(temp, ".x-*", path, []byte("content")); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if raw, _ := os.ReadFile(path); err != nil || st.Mode().Perm() != 0o600 || string(raw) != "content" {
		t.Fatal(st, err)
	}
	if err := WriteBy(temp, ".x-*", filepath.Join(dir, "none", "f"), nil); err == nil {
		t.Fatal("written into no folder")
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
}
