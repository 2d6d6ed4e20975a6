package jsonfile

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteReplacesTheWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "report.json")
	// The second is shorter: nothing of the first may stay.
	for _, c := range []struct {
		v    any
		want string
	}{
		{map[string]any{"b": []int{1, 2}, "a": "x < y"}, "{\n  \"a\": \"x \\u003c y\",\n  \"b\": [\n    1,\n    2\n  ]\n}\n"},
		{[]string{}, "[]\n"},
	} {
		if err := Write(path, c.v); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != c.want {
			t.Errorf("%v: %q, want %q", err, got, c.want)
		}
	}
}

func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(file, "report.json"), 1); err == nil {
		t.Error("written below a file")
	}
	none := filepath.Join(dir, "none.json")
	if err := Write(none, math.NaN()); err == nil {
		t.Error("NaN was written")
	}
	if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what cannot be written leaves a file: %v", err)
	}
}
