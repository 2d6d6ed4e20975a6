package store

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/extents"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// openSpread opens a store whose default volume has two members, on one filesystem.
func openSpread(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	opts.SharedFilesystem = true
	opts.Members = []MemberDir{{DefaultBackingVolume, "x", filepath.Join(dir, "x")}, {DefaultBackingVolume, "y", filepath.Join(dir, "y")}}
	return open(t, filepath.Join(dir, "state"), opts)
}

// A file whose extents move all the time is what was written to it.
func TestSpreadFileAgainstAModel(t *testing.T) {
	for name, opts := range map[string]Options{"without checksums": {}, "with checksums": withSums()} {
		t.Run(name, func(t *testing.T) {
			s := openSpread(t, t.TempDir(), opts)
			const size = 5*extents.Size + 12288
			f := newLUN(t, s, lunA, size)
			ctx, stop := context.WithCancel(t.Context())
			var movers sync.WaitGroup
			var moved atomic.Int64
			movers.Go(func() {
				r := rand.New(rand.NewPCG(8, 8))
				for ctx.Err() == nil {
					err := f.places.spread.Move(ctx, r.Int64N(extents.Extents(size)), uint8(1+r.IntN(3)))
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
						return
					}
					moved.Add(1)
				}
			})
			model := make([]byte, size)
			r := rand.New(rand.NewPCG(1, 2))
			tried, cached := 0, 0
			for i := 0; i < 1500 || moved.Load() < 100; i++ {
				n := (r.Int64N(100_000) + 4608) &^ 511
				off := r.Int64N(size-n) &^ 511
				if i%3 == 0 { // over the end of an extent
					off = min((1+r.Int64N(4))*extents.Size-n/2&^511, size-n)
				}
				p := make([]byte, n)
				for j := range p {
					p[j] = byte(r.Uint32())
				}
				var err error
				switch i % 8 {
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
					off, p = off&^4095, p[:4096]
					if f.TryWrite(p, off) {
						tried++
					} else {
						err = f.WriteAt(p, off)
					}
					copy(model[off:], p)
				case 5:
					err = f.Checkpoint()
				case 6:
					if f.ReadCached(p, off) {
						cached++
					} else {
						err = f.ReadAt(p, off)
					}
					if err == nil && !bytes.Equal(p, model[off:off+n]) {
						t.Fatalf("%d bytes at %d are not what was written", n, off)
					}
				case 7:
					var run int64
					var data bool
					if run, data, err = f.Extents(off, n); err == nil && (run <= 0 || run > n || !data && !AllZero(model[off:off+run])) {
						t.Fatalf("a run of %d, data %v at %d", run, data, off)
					}
				}
				if err != nil {
					t.Fatalf("operation %d at %d: %v", i, off, err)
				}
			}
			stop()
			movers.Wait()
			got := make([]byte, size)
			must(t, f.ReadAt(got, 0))
			if !bytes.Equal(got, model) {
				t.Error("the file is not what was written to it")
			}
			t.Logf("%d moves, %d writes and %d reads that did not wait", moved.Load(), tried, cached)
			if cached == 0 {
				t.Error("nothing was done without a wait")
			}
		})
	}
}

// A copy of a spread file has each extent where its source has it, and shares it there.
func TestCopyOfASpreadFile(t *testing.T) {
	s := openSpread(t, t.TempDir(), withSums())
	const size = 4 * extents.Size
	a, b := newLUN(t, s, lunA, size), newLUN(t, s, lunB, size)
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(i >> 12)
	}
	must(t, a.WriteAt(p, 0))
	c, err := a.CopyTo(b, size, false)
	must(t, err)
	must(t, a.WriteAt(make([]byte, 8192), extents.Size-4096))
	must(t, c.Run(t.Context()))
	got := make([]byte, size)
	must(t, b.ReadAt(got, 0))
	if !bytes.Equal(got, p) {
		t.Error("the copy is not what the source was")
	}
	must(t, a.ReadAt(got, 0))
	copy(p[extents.Size-4096:], make([]byte, 8192))
	if !bytes.Equal(got, p) {
		t.Error("the source is not what was written to it")
	}
}

// What is spread is there after the store was closed, longer and shorter ones as well, and nothing
// of it when it was deleted.
func TestSpreadObjectsOverTheStoresLife(t *testing.T) {
	dir := t.TempDir()
	with := func(members ...MemberDir) Options {
		return Options{Sums: withSums().Sums, SharedFilesystem: true, Members: members}
	}
	x, y := MemberDir{DefaultBackingVolume, "x", filepath.Join(dir, "x")}, MemberDir{DefaultBackingVolume, "y", filepath.Join(dir, "y")}
	state := filepath.Join(dir, "state")
	s, err := Open(state, testIdent, with(x, y))
	must(t, err)
	const size = 4 * extents.Size
	f := newLUN(t, s, lunA, size)
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(i >> 13)
	}
	must(t, f.WriteAt(p, 0))
	must(t, f.places.spread.Move(t.Context(), 1, 1))
	must(t, s.Default().ResizeLUN(lunA, size, size+5<<20))
	must(t, f.WriteAt(p[:4096], size+5<<20-4096))
	must(t, f.Checkpoint())
	if n, err := f.Allocated(); err != nil || n < size || n > size+1<<20 {
		t.Errorf("%d bytes are allocated, %v", n, err)
	}
	must(t, f.Close())
	newLUN(t, s, lunB, size)
	must(t, s.Close())

	// A member of the volume is missing, or is another one.
	for name, members := range map[string][]MemberDir{
		"missing": {x},
		"another": {x, {DefaultBackingVolume, "y", filepath.Join(dir, "z")}},
		"swapped": {{x.Of, "x", y.Dir}, {x.Of, "y", x.Dir}},
	} {
		if s, err := Open(state, testIdent, with(members...)); !errors.Is(err, ErrBackingVolume) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				s.Close()
			}
		}
	}
	left := filepath.Join(dir, "x", string(kindLUN), "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e04"+imgSuffix)
	must(t, os.WriteFile(left, []byte("of an object that a crash has cut short"), 0o600))
	s, err = Open(state, testIdent, with(y, MemberDir{DefaultBackingVolume, "new", filepath.Join(dir, "new")}, x))
	must(t, err)
	defer s.Close()
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a crash has left is still there: %v", err)
	}
	f, err = s.Default().OpenLUN(lunA)
	must(t, err)
	got := make([]byte, size)
	must(t, f.ReadAt(got, 0))
	if !bytes.Equal(got, p) || f.places.m.At(1) != 1 || f.places.m.At(2) != 3 {
		t.Errorf("the LUN is not what it was; extents 1 and 2 are in %d and %d", f.places.m.At(1), f.places.m.At(2))
	}
	must(t, f.places.spread.Move(t.Context(), 2, 4)) // to the new member
	must(t, f.ReadAt(got, 0))
	if !bytes.Equal(got, p) {
		t.Error("the LUN is not what it was")
	}
	must(t, f.Close())
	must(t, s.Default().DeleteLUN(lunA))
	for _, d := range []string{"state/volumes/default", "x", "y", "new"} {
		list, err := filepath.Glob(filepath.Join(dir, d, string(kindLUN), lunA+"*"))
		if err != nil || len(list) > 0 {
			t.Errorf("%v are left, %v", list, err)
		}
	}
}

// Snapshots and clones of a spread LUN lie where it lies, and share its extents.
func TestSnapshotOfASpreadLUN(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize+512<<20)
	s := openSpread(t, d.Mount, withSums())
	v := s.Default()
	const size = 6 * extents.Size
	f := newLUN(t, s, lunA, size)
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(i>>12) | 1
	}
	must(t, f.WriteAt(p, 0))
	must(t, f.places.spread.Move(t.Context(), 0, 3))
	must(t, f.places.spread.Move(t.Context(), 4, 1))
	must(t, f.Sync())
	_, free, err := v.Capacity()
	must(t, err)
	must(t, v.Snapshot(t.Context(), lunA, snapA, 5, nil))
	must(t, f.WriteAt(make([]byte, extents.Size), extents.Size/2))
	must(t, v.CloneFromSnapshot(t.Context(), snapA, lunB, size+extents.Size, 6, nil))
	g, err := v.OpenLUN(lunB)
	must(t, err)
	defer g.Close()
	got := make([]byte, size)
	must(t, g.ReadAt(got, 0))
	if !bytes.Equal(got, p) {
		t.Error("the clone of the snapshot is not what the LUN was")
	}
	for e := range int64(6) {
		if a, b := f.places.m.At(e), g.places.m.At(e); a != b {
			t.Errorf("extent %d lies in %d, and in %d in the clone", e, a, b)
		}
	}
	_, left, err := v.Capacity()
	must(t, err)
	if (free-left)/3 > 2*extents.Size { // the filesystem counts three times
		t.Errorf("a snapshot and a clone of %d bytes took %d", size, free-left)
	}
	must(t, v.DeleteSnapshot(snapA))
	must(t, g.ReadAt(got, 0))
	if !bytes.Equal(got, p) {
		t.Error("the clone is not what it was")
	}
}

// A flush of a LUN flushes all of its images, and fails if one of them cannot be flushed.
func TestFlushReachesAllPlaces(t *testing.T) {
	for _, of := range []string{"default/luns", "default/x/luns", "default/y/luns"} {
		opts := withSums()
		var armed atomic.Bool
		opts.Faults = func(op, path string, _, _ int64) error {
			if armed.Load() && op == FaultSync && strings.Contains(path, of) {
				return syscall.EIO
			}
			return nil
		}
		s := openSpread(t, t.TempDir(), opts)
		f := newLUN(t, s, lunA, 4*extents.Size)
		must(t, f.WriteAt(pattern(4*extents.Size), 0))
		must(t, f.Sync())
		armed.Store(true)
		if err := f.Sync(); err == nil || s.Failed() == nil {
			t.Errorf("a flush without %s: %v", of, err)
		}
	}
}

// An extent of a snapshot follows that of its LUN, and shares what is the same.
func TestMoveLikeARelative(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize+512<<20)
	s := openSpread(t, d.Mount, withSums())
	v := s.Default()
	const size = 3 * extents.Size
	f := newLUN(t, s, lunA, size)
	was := pattern(size)
	must(t, f.WriteAt(was, 0))
	must(t, f.Sync())
	must(t, v.Snapshot(t.Context(), lunA, snapA, 5, nil))
	g, err := v.OpenSnapshot(snapA)
	must(t, err)
	defer g.Close()
	is := bytes.Clone(was)
	copy(is[1<<20:], bytes.Repeat([]byte{9}, 64<<10))
	clear(is[2<<20 : 2<<20+32<<10])
	must(t, f.WriteAt(is[1<<20:][:64<<10], 1<<20))
	must(t, f.Discard(2<<20, 32<<10))
	must(t, f.MoveExtent(t.Context(), 0, 3))
	must(t, f.Sync())
	_, before, err := v.Capacity()
	must(t, err)
	must(t, g.MoveExtentLike(t.Context(), 0, 3, f))
	must(t, g.Sync())
	_, after, err := v.Capacity()
	must(t, err)
	if freed := (after - before) / 3; freed < 3<<20 { // the filesystem counts three times
		t.Errorf("the move freed %d bytes: what is the same is not shared", freed)
	}
	if data, shared, err := g.Extent(0); err != nil || !data || !shared || g.Where(0) != 3 {
		t.Errorf("data %v, shared %v in %d, %v", data, shared, g.Where(0), err)
	}
	for x, want := range map[*File][]byte{f: is, g: was} {
		got := make([]byte, size)
		must(t, x.ReadAt(got, 0))
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what it was", x.path)
		}
	}
	// Relatives that are elsewhere, too short or none at all are no help.
	for _, r := range []*File{f, g, nil} {
		must(t, g.MoveExtentLike(t.Context(), 1, 3, r))
		must(t, g.MoveExtentLike(t.Context(), 1, 2, r))
	}
	got := make([]byte, size)
	must(t, g.ReadAt(got, 0))
	if !bytes.Equal(got, was) {
		t.Error("the snapshot is not what it was")
	}
}
