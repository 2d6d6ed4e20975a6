package store

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// drop takes a file out of the page cache.
func drop(t *testing.T, f *File) {
	t.Helper()
	must(t, f.Sync())
	must(t, f.control(func(fd int) error { return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) }))
}

func TestReadAhead(t *testing.T) {
	_, f := lunFile(t, Options{})
	if f.probing != probeNowait {
		t.Skip("skipped: the filesystem of this test's folder cannot tell what is in the page cache")
	}
	want, p := content(1, 1<<20), make([]byte, 1<<20)
	must(t, f.WriteAt(want, 1<<20))
	drop(t, f)
	if cached, err := f.ReadAhead(p, 1<<20); err != nil || cached {
		t.Errorf("after the page cache was dropped: cached %v, %v", cached, err)
	}
	if !f.ReadCached(p, 1<<20) || !bytes.Equal(p, want) {
		t.Error("what was read ahead is not in the page cache")
	}
	if cached, err := f.ReadAhead(p, 1<<20); err != nil || !cached {
		t.Errorf("once it is there: cached %v, %v", cached, err)
	}
	size, err := f.Size()
	must(t, err)
	if _, err := f.ReadAhead(p, size-4096); !errors.Is(err, ErrRange) {
		t.Errorf("beyond the end: %v", err)
	}
	must(t, f.Close())
	if _, err := f.ReadAhead(p, 0); err == nil {
		t.Error("a closed file is read")
	}
}

// Reading ahead finds no damage: that would be reported and healed without a host's read, and
// without the lock of the range.
func TestReadAheadLooksAtNoChecksums(t *testing.T) {
	s, f := lunFile(t, withSums())
	want, p := content(1, 8192), make([]byte, 8192)
	must(t, f.WriteAt(want, 0))
	must(t, f.Sync())
	flip(t, s, lunA, 4096)
	drop(t, f)
	if _, err := f.ReadAhead(p, 0); err != nil {
		t.Error(err)
	}
	if n := s.SumsCounts(); n.Mismatched != 0 || n.Healed != 0 {
		t.Errorf("%+v", n)
	}
	on := make([]byte, 8192)
	if _, err := imageOf(t, s, lunA).ReadAt(on, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if bytes.Equal(on, want) {
		t.Error("the damage is gone")
	}
	if err := f.ReadAt(p, 0); !errors.Is(err, ErrChecksum) {
		t.Errorf("a read of the damaged block: %v", err)
	}
}

// A failed read ahead does not make the store untrusted.
func TestReadAheadThatFails(t *testing.T) {
	s, f := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultRead {
			return unix.EIO
		}
		return nil
	}})
	if _, err := f.ReadAhead(make([]byte, 4096), 0); !errors.Is(err, ErrMedia) || s.Failed() != nil {
		t.Errorf("%v, store: %v", err, s.Failed())
	}
}
