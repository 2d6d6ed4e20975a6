package exits

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLastWords(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "termination-log")
	if err := LastWords(path, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Fatal("it makes a file that nobody asked for")
	}
	if err := LastWords("", "x"); err != nil {
		t.Fatal(err)
	}
	if err := LastWords(dir, "x"); err != nil {
		t.Errorf("a directory: %v", err)
	}
	if err := os.WriteFile(path, []byte("the words of an earlier life, which were longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"the disk failed", strings.Repeat("ä", MaxMessage), "a" + strings.Repeat("ä", MaxMessage)} {
		if err := LastWords(path, text); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || len(got) > MaxMessage || len(got) < min(len(text), MaxMessage-1) || !utf8.Valid(got) || !strings.HasPrefix(text, string(got)) {
			t.Errorf("%d of %d bytes, whole characters %v, %v", len(got), len(text), utf8.Valid(got), err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(path, "nothing"), path+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := LastWords(path+"2", "x"); err == nil {
		t.Error("what cannot be looked at is an error")
	}
}
