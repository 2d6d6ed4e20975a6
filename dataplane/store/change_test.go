package store

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestChangesAgainstAModel: whatever is changed, aligned or not, is read back, and checks; also by
// the checksums that are in the file.
func TestChangesAgainstAModel(t *testing.T) {
	const size = 4<<20 + 2560
	dir := t.TempDir()
	s, err := Open(dir, testIdent, withSums())
	must(t, err)
	f := newLUN(t, s, lunA, size)
	model := make([]byte, size)
	rnd := rand.New(rand.NewPCG(5, 6))
	for i := range 1500 {
		off := rnd.Int64N(size) &^ 511
		n := min((rnd.Int64N(40000)+512)&^511, size-off)
		switch rnd.IntN(4) {
		case 0:
			off &^= 4095
			n = min((n+4095)&^4095, size-off)
		case 1:
			n = min(n, 1024)
		case 2:
			if rnd.IntN(4) == 0 {
				off = size - n
			}
		}
		p := content(uint64(i+1), int(n))
		switch i % 5 {
		case 0, 1:
			err = f.WriteAt(p, off)
			copy(model[off:], p)
		case 2:
			err = f.WriteAtDurable(p, off)
			copy(model[off:], p)
		case 3:
			err = f.Discard(off, n)
			clear(model[off : off+n])
		case 4:
			got := make([]byte, n)
			if err = f.ReadAt(got, off); err == nil && !bytes.Equal(got, model[off:off+n]) {
				t.Fatalf("step %d: %d+%d differs from the model", i, off, n)
			}
		}
		if err != nil {
			t.Fatalf("step %d, %d+%d: %v", i, off, n, err)
		}
	}
	reads(t, f, 0, model)
	must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close()))
	f = openLUN(t, open(t, dir, withSums()), lunA)
	reads(t, f, 0, model)
	if n := f.s.SumsCounts(); n != (SumsCounts{}) {
		t.Errorf("%+v", n)
	}
	if err := f.WriteAt(make([]byte, 4096), size); !errors.Is(err, ErrRange) {
		t.Errorf("a write beyond the end: %v", err)
	}
	if got, err := f.Size(); err != nil || got != size {
		t.Errorf("%d bytes, %v", got, err)
	}
}

// TestPartOfARottenBlock: what is written to a part of it does not make the rest valid, and what
// covers it does.
func TestPartOfARottenBlock(t *testing.T) {
	for name, change := range map[string]func(f *File, off, n int64) error{
		"write":   func(f *File, off, n int64) error { return f.WriteAt(content(7, int(n)), off) },
		"durable": func(f *File, off, n int64) error { return f.WriteAtDurable(content(7, int(n)), off) },
		"discard": func(f *File, off, n int64) error { return f.Discard(off, n) },
		"zero":    func(f *File, off, n int64) error { return f.Zero(off, n) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, testIdent, withSums())
			must(t, err)
			f := newLUN(t, s, lunA, 1<<20)
			must(t, f.WriteAt(content(1, 1<<20), 0))
			for _, at := range []int64{4096, 16384, 20480, 65536} {
				flip(t, s, lunA, at+100)
			}
			must(t, change(f, 4608, 512))      // within a block
			must(t, change(f, 12800, 8192))    // from a good block over a rotten one into another
			must(t, change(f, 65536+512, 512)) // the rot is not what is written
			want := []Range{{4096, 4096}, {20480, 4096}, {65536, 4096}}
			wantWrong(t, f, want...)
			must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close()))
			s = open(t, dir, withSums())
			f = openLUN(t, s, lunA)
			wantWrong(t, f, want...)
			must(t, change(f, 65536+100&^511, 512)) // even when all that was rotten is overwritten: that is unknown
			wantWrong(t, f, want...)
			must(t, change(f, 3584, 65536+8192-3584))
			wantWrong(t, f)
		})
	}
}

// TestPartOfABlockThatCannotBeRead: it is lost for good once a part of it was written.
func TestPartOfABlockThatCannotBeRead(t *testing.T) {
	var broken atomic.Bool
	opts := withSums()
	disk := unreadable(8192)
	opts.Faults = func(op, path string, off, n int64) error {
		if !broken.Load() {
			return nil
		}
		return disk(op, path, off, n)
	}
	f := newLUN(t, open(t, t.TempDir(), opts), lunA, 1<<20)
	must(t, f.WriteAt(content(1, 1<<20), 0))
	broken.Store(true)
	must(t, f.WriteAt(content(2, 1024), 8192-512))
	if err := f.ReadAt(make([]byte, 4096), 8192); !errors.Is(err, ErrMedia) {
		t.Errorf("%v", err)
	}
	broken.Store(false)
	wantWrong(t, f, Range{8192, 4096})
}

// TestChangesThatFindNoSpace: what of them has come into the file checks, and what is not known to
// be as it was written does not.
func TestChangesThatFindNoSpace(t *testing.T) {
	const size = 1<<20 + 512
	old, p := content(1, size), content(2, 40960)
	for _, c := range []struct {
		name    string
		off     int64
		n       int64
		done    int64 // bytes that come into the file
		discard bool
		rotten  []int64
		want    []Range
	}{
		{name: "nothing is written", off: 4096, n: 40960},
		{name: "two blocks are", off: 4096, n: 40960, done: 8192},
		{name: "all is", off: 4096, n: 40960, done: 40960},
		{name: "unaligned, nothing", off: 4608, n: 20480},
		{name: "unaligned, its first block", off: 4608, n: 20480, done: 3584},
		{name: "unaligned, all", off: 4608, n: 20480, done: 20480},
		{name: "to the end", off: size - 5120, n: 5120, done: 4608},
		{name: "discard, nothing", off: 4608, n: 20480, discard: true},
		{name: "discard, a part", off: 4608, n: 20480, discard: true, done: 3584 + 4096},
		{name: "a part of a block", off: 4096, n: 40960, done: 8192 + 512, want: []Range{{12288, 4096}}},
		{name: "nothing, to a rotten block", off: 4096, n: 40960, rotten: []int64{8192}, want: []Range{{8192, 4096}}},
		{name: "over a rotten block", off: 4096, n: 40960, rotten: []int64{8192}, done: 8192},
		{name: "a part of a rotten block", off: 4608, n: 512, rotten: []int64{4096}, done: 512, want: []Range{{4096, 4096}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s *Store
			armed := false
			opts := withSums()
			opts.Faults = func(op, _ string, off, _ int64) error {
				if !armed || op != FaultWrite && op != FaultDiscard {
					return nil
				}
				part := p[:c.done]
				if c.discard {
					part = make([]byte, c.done)
				}
				_, err := imageOf(t, s, lunA).WriteAt(part, off)
				return errors.Join(err, syscall.ENOSPC)
			}
			dir := t.TempDir()
			s = open(t, dir, opts)
			f := newLUN(t, s, lunA, size)
			must(t, f.WriteAt(old, 0))
			for _, at := range c.rotten {
				flip(t, s, lunA, at+4000)
			}
			armed = true
			var err error
			if c.discard {
				err = f.Discard(c.off, c.n)
			} else {
				err = f.WriteAt(p[:c.n], c.off)
			}
			armed = false
			if !errors.Is(err, ErrNoSpace) {
				t.Fatal(err)
			}
			wantWrong(t, f, c.want...)
			model := slices.Clone(old)
			if c.discard {
				clear(model[c.off:][:c.done])
			} else {
				copy(model[c.off:], p[:c.done])
			}
			got := make([]byte, size)
			bad, err := f.ReadMarked(got, 0)
			must(t, err)
			for _, r := range bad {
				clear(model[r.Off:][:r.Len])
			}
			if !bytes.Equal(got, model) {
				t.Error("not what has come into the file")
			}
		})
	}
}

// sumsFile is where the checksums of a LUN are.
func sumsFile(dir, id string) string {
	return filepath.Join(dir, sumsDir, DefaultBackingVolume, "luns", id+sumsSuffix)
}

// TestNoSpaceForChecksums: nothing is lost, the store stays trusted, and what would clear
// write-intent bits fails until there is space again.
func TestNoSpaceForChecksums(t *testing.T) {
	var full atomic.Bool
	var seen atomic.Int64
	opts := withSums()
	opts.Faults = func(op, path string, _, _ int64) error {
		if op == FaultSums && full.Load() {
			if path != "sums/default/luns/"+lunA+".sums" && path != "sums/default/snapshots/"+snapA+".sums" {
				t.Errorf("path %s", path)
			}
			seen.Add(1)
			return &os.PathError{Op: "write", Err: syscall.ENOSPC}
		}
		return nil
	}
	dir := t.TempDir()
	s := open(t, dir, opts)
	f := newLUN(t, s, lunA, 64<<20)
	must(t, f.WriteAt(content(2, 4096), 30<<20)) // has space kept around it
	full.Store(true)
	model := content(1, 1<<20)
	must(t, f.WriteAt(model, 30<<20))
	if err := f.WriteAt(content(2, 4096), 64<<20-4096); !errors.Is(err, ErrNoSpace) || s.Failed() != nil {
		t.Fatalf("a write whose checksums have no space: %v, failed: %v", err, s.Failed())
	}
	reads(t, f, 64<<20-4096, make([]byte, 4096))
	must(t, f.Discard(0, 20<<20))
	must(t, f.Sync())
	if err := f.Checkpoint(); !errors.Is(err, ErrNoSpace) || s.Failed() != nil || seen.Load() == 0 {
		t.Fatalf("%v, failed: %v", err, s.Failed())
	}
	reads(t, f, 30<<20, model)
	if err := s.Default().Snapshot(t.Context(), lunA, snapA, 1, nil); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a snapshot: %v", err)
	}
	if err := s.Default().ResizeLUN(lunA, 64<<20, 128<<20); !errors.Is(err, ErrNoSpace) || s.Failed() != nil {
		t.Errorf("a larger LUN: %v", err)
	}
	must(t, f.Close())
	f = openLUN(t, s, lunA) // what was not written is still known
	reads(t, f, 30<<20, model)
	wantWrong(t, f)
	full.Store(false)
	must(t, f.Checkpoint())
	must(t, s.Default().ResizeLUN(lunA, 64<<20, 128<<20))
	reads(t, openLUN(t, crashed(t, dir, withSums()), lunA), 30<<20, model)
}

// TestNoSpaceForNewObjects: neither an image nor checksums are left.
func TestNoSpaceForNewObjects(t *testing.T) {
	opts := withSums()
	opts.Faults = func(op, _ string, _, _ int64) error {
		if op == FaultSums {
			return syscall.EDQUOT
		}
		return nil
	}
	dir := t.TempDir()
	s := open(t, dir, opts)
	if err := s.Default().CreateLUN(lunA, 1<<20, NoBirth); !errors.Is(err, ErrNoSpace) || s.Failed() != nil {
		t.Errorf("%v", err)
	}
	if _, err := s.Default().OpenLUN(lunA); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	noFiles(t, dir)
}

// noFiles says that there are no objects, whole or in part.
func noFiles(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); strings.Contains(name, imgSuffix) || strings.Contains(name, sumsSuffix) || strings.HasSuffix(name, tmpSuffix) && name != sumsMark {
			t.Errorf("%s is left", path)
		}
		return nil
	}))
}

// TestFailedChecksumsFailTheStore (R12), no matter who meets the failure.
func TestFailedChecksumsFailTheStore(t *testing.T) {
	for _, c := range []struct {
		op  string
		err error
	}{{FaultSums, syscall.EIO}, {FaultSumsSync, syscall.EIO}, {FaultSumsSync, syscall.ENOSPC}} {
		var broken atomic.Bool
		opts := withSums()
		opts.Faults = func(op, _ string, _, _ int64) error {
			if op == c.op && broken.Load() {
				return c.err
			}
			return nil
		}
		s := open(t, t.TempDir(), opts)
		f := newLUN(t, s, lunA, 1<<20)
		must(t, f.WriteAt(content(1, 4096), 0))
		broken.Store(true)
		must(t, f.Sync()) // does not concern them
		if err := f.Checkpoint(); !errors.Is(err, ErrMedia) || errors.Is(err, ErrNoSpace) || s.Failed() == nil {
			t.Errorf("%s %v: %v, failed: %v", c.op, c.err, err, s.Failed())
		}
		if why, err := s.Untrusted(); err != nil || why == "" {
			t.Errorf("%s %v: not marked: %v", c.op, c.err, err)
		}
		if err := f.WriteAt(content(1, 4096), 0); !errors.Is(err, ErrFailed) {
			t.Errorf("%s %v: a write: %v", c.op, c.err, err)
		}
		if err := f.WriteAt(content(1, 512), 512); !errors.Is(err, ErrFailed) {
			t.Errorf("%s %v: a write of a part: %v", c.op, c.err, err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("%s %v: close: %v", c.op, c.err, err)
		}
	}
}
