package mutate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// An edit whose place has moved is an error, not a mistake that stays unnoticed.
func TestTextMustOccurOnce(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("x.go", "one two two")
	for old, want := range map[string]error{"one": nil, "two": ErrText, "three": ErrText} {
		if _, err := Overlay(root, dir, "0", []Edit{{"x.go", old, "y"}}); !errors.Is(err, want) {
			t.Errorf("%q: %v", old, err)
		}
	}
	broken, err := os.ReadFile(filepath.Join(dir, "0-x.go"))
	if err != nil || string(broken) != "y two two" {
		t.Errorf("%q %v", broken, err)
	}
	// A mistake that takes several changes: all of them, in one file or in two.
	write("z.go", "four")
	if _, err := Overlay(root, dir, "1", []Edit{{"x.go", "one", "1"}, {"x.go", "1 two", "1 2"}, {"z.go", "four", "4"}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"1-x.go": "1 2 two", "1-z.go": "4"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if _, err := Overlay(root, dir, "2", []Edit{{"x.go", "one", "1"}, {"z.go", "five", "5"}}); !errors.Is(err, ErrText) {
		t.Error(err)
	}
}
