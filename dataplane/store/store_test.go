package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var testIdent = Identity{Cluster: "c1", Pair: "p1", Node: "a"}

const (
	lunA  = "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e01"
	lunB  = "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e02"
	snapA = "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e03"
)

func open(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	s, err := Open(dir, testIdent, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestOpenKeepsItsID(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s = open(t, dir, Options{}); s.ID() != id || id == "" {
		t.Fatalf("id %q became %q", id, s.ID())
	}
	if other := open(t, t.TempDir(), Options{}); other.ID() == id {
		t.Fatal("two stores have one id")
	}
}

func TestOpenRefusesASecondProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, Options{})
	// flock belongs to the open file, so a second Open in this process meets it as another process
	// would.
	if _, err := Open(dir, testIdent, Options{}); !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
}

func TestOpenRefusesForeignStoresByName(t *testing.T) {
	for _, c := range []struct {
		name  string
		ident Identity
		want  string
	}{
		{"cluster", Identity{"other", "p1", "a"}, `cluster "c1"`},
		{"pair", Identity{"c1", "p2", "a"}, `pair "p1"`},
		{"node", Identity{"c1", "p1", "b"}, `node "a"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, testIdent, Options{})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			_, err = Open(dir, c.ident, Options{})
			if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v", err)
			}
			open(t, dir, Options{}) // and the refusal let go of the lock
		})
	}
}

func TestOpenRefusesWhatItCannotRead(t *testing.T) {
	for _, c := range []struct {
		name, file, content string
		want                error
	}{
		{"newer", identityFile, `{"format":3,"id":"` + lunA + `","cluster":"c1","pair":"p1","node":"a"}`, ErrNewer},
		{"garbage", identityFile, "not json", ErrForeign},
		{"no format", identityFile, `{}`, ErrForeign},
		{"bad id", identityFile, `{"format":1,"id":"x","cluster":"c1","pair":"p1","node":"a"}`, ErrForeign},
		{"data without a name", metaFile, "something", ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, testIdent, Options{}); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, c.file)); string(got) != c.content {
				t.Fatal("a refused directory was changed")
			}
		})
	}
	if _, err := Open(t.TempDir(), Identity{Cluster: "c"}, Options{}); err == nil {
		t.Fatal("an incomplete identity was taken")
	}
}

func TestOpenRemovesLeftovers(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Default().CreateLUN(lunA, 1<<20, NoBirth); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(s.Default().folder(kindLUN), lunB+imgSuffix+tmpSuffix)
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, dir, Options{})
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Fatalf("leftover is still there: %v", err)
	}
	if l, err := s.Default().ListLUNs(); err != nil || len(l) != 1 {
		t.Fatalf("%v %v", l, err)
	}
}

func TestCapacityOfTheDefaultVolume(t *testing.T) {
	total, free, err := open(t, t.TempDir(), Options{}).Default().Capacity()
	if err != nil || total <= 0 || free < 0 || free > total {
		t.Fatalf("total %d free %d: %v", total, free, err)
	}
}

// A directory that is opened again has the same lock; a copy of it has another one.
func TestLockID(t *testing.T) {
	dir, folder := t.TempDir(), t.TempDir()
	id := func(dir string) string {
		t.Helper()
		s, err := Open(dir, Identity{Cluster: "c", Pair: "p", Node: "a"}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		id, err := s.LockID()
		if err != nil || id == "" {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	first := id(dir)
	if again := id(dir); again != first {
		t.Fatalf("%s, then %s", first, again)
	}
	if err := os.CopyFS(folder, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if id(folder) == first {
		t.Fatal("a copy holds the same lock")
	}
}
