package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestObjectsAreIdempotent(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	if err := s.Default().CreateLUN(lunA, 1<<20, NoBirth); err != nil {
		t.Fatal(err)
	}
	f, err := s.Default().OpenLUN(lunA)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 2 {
		if err := s.Default().ResizeLUN(lunA, 1<<20, 3<<20); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := f.Size(); err != nil || n != 3<<20 {
		t.Fatalf("an open file sees %d: %v", n, err)
	}
	if err := s.Default().ResizeLUN(lunA, 3<<20, 1<<20); !errors.Is(err, ErrShrink) {
		t.Fatalf("%v", err)
	}
	if err := s.Default().ResizeLUN(lunB, 1<<20, 1<<20); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
	if empty, err := s.Default().EmptyOfLUNs(); err != nil || empty {
		t.Fatalf("%v %v", empty, err)
	}
	for range 2 {
		if err := s.Default().DeleteLUN(lunA); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Default().OpenLUN(lunA); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
	if empty, err := s.Default().EmptyOfLUNs(); err != nil || !empty {
		t.Fatalf("%v %v", empty, err)
	}
}

func TestNamesOutsideTheStoreAreRefused(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	for _, id := range []string{"", "x", "../../../etc/passwd", strings.ToUpper(lunA), "{" + lunA + "}", "urn:uuid:" + lunA} {
		if err := s.Default().CreateLUN(id, 1<<20, NoBirth); !errors.Is(err, ErrBadUUID) {
			t.Errorf("%q: %v", id, err)
		}
		if err := s.Default().DeleteLUN(id); !errors.Is(err, ErrBadUUID) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestSnapshotAndClones(t *testing.T) {
	for _, noReflink := range []bool{false, true} {
		s := open(t, t.TempDir(), Options{NoReflink: noReflink})
		if err := s.Default().CreateLUN(lunA, 8<<20, NoBirth); err != nil {
			t.Fatal(err)
		}
		f, err := s.Default().OpenLUN(lunA)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		old := bytes.Repeat([]byte("old!"), 1<<10)
		if err := f.WriteAt(old, 5<<20); err != nil {
			t.Fatal(err)
		}
		var last, total int64
		for range 2 {
			err := s.Default().Snapshot(t.Context(), lunA, snapA, 1, func(d, n int64) { last, total = d, n })
			if err != nil {
				t.Fatal(err)
			}
		}
		if last != 8<<20 || total != 8<<20 {
			t.Errorf("progress ended at %d of %d", last, total)
		}
		if err := f.WriteAt(bytes.Repeat([]byte("new!"), 1<<10), 5<<20); err != nil {
			t.Fatal(err)
		}
		if err := s.Default().CloneFromSnapshot(t.Context(), snapA, lunB, 9<<20, 1, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Default().DeleteSnapshot(snapA); err != nil {
			t.Fatal(err)
		}
		c, err := s.Default().OpenLUN(lunB)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got := make([]byte, 9<<20)
		if err := c.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, 9<<20)
		copy(want[5<<20:], old)
		if !bytes.Equal(got, want) {
			t.Error("the clone is not the snapshot")
		}
		if n, _ := c.Allocated(); n > 1<<20 {
			t.Errorf("the clone lost its holes: %d bytes allocated", n)
		}
		if err := s.Default().CloneLUN(t.Context(), lunA, lunB, 1<<20, 1, nil); !errors.Is(err, ErrShrink) {
			t.Errorf("%v", err)
		}
	}
}

func TestACutShortCloneLeavesNothing(t *testing.T) {
	s := open(t, t.TempDir(), Options{NoReflink: true})
	if err := s.Default().CreateLUN(lunA, 4<<20, NoBirth); err != nil {
		t.Fatal(err)
	}
	f, err := s.Default().OpenLUN(lunA)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.WriteAt(make([]byte, 4<<20), 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = s.Default().CloneLUN(ctx, lunA, lunB, 4<<20, 1, func(int64, int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	entries, err := os.ReadDir(s.Default().folder(kindLUN))
	if err != nil || len(entries) != 1 {
		t.Fatalf("left: %v %v", entries, err)
	}
}

func TestAFullDiskRefusesObjectsAndStaysTrusted(t *testing.T) {
	full := false
	s := open(t, t.TempDir(), Options{Faults: func(op, _ string, _, _ int64) error {
		if full && (op == FaultCreate || op == FaultClone) {
			return syscall.ENOSPC
		}
		return nil
	}})
	if err := s.Default().CreateLUN(lunA, 1<<20, NoBirth); err != nil {
		t.Fatal(err)
	}
	full = true
	if err := s.Default().CreateLUN(lunB, 1<<20, NoBirth); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("%v", err)
	}
	if err := s.Default().Snapshot(t.Context(), lunA, snapA, 1, nil); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("%v", err)
	}
	if s.Failed() != nil {
		t.Fatal(s.Failed())
	}
}
