package report

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "figures.json")
	for _, n := range []int{1, 2} { // the second time the folder and the file are there
		if err := Write(path, map[string]int{"n": n}); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "{\n  \"n\": 2\n}\n" {
		t.Errorf("%q, %v", b, err)
	}
	if Write(path, func() {}) == nil {
		t.Error("a function is no figure")
	}
}
