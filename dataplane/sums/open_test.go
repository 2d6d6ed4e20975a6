package sums

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestFileOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lun.sums")
	const size = 3*pageSums*BlockSize + 512 // the last block is short
	c := NewCache(1 << 20)
	if _, err := Open(c, path, testOwner, size); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	must(t, os.WriteFile(path+tmpSuffix, []byte("a crash left this"), 0o600))
	must(t, Create(path, testOwner, size, true))
	f, err := Open(c, path, testOwner, size)
	must(t, err)
	if f.Blocks() != 3*pageSums+1 || f.Adopted() != AllAdopted {
		t.Errorf("%d blocks, adopted %d", f.Blocks(), f.Adopted())
	}
	must(t, f.Put(f.Blocks()-1, block(3)[:512]))
	must(t, f.Put(5, block(4)))
	must(t, f.Flush())
	must(t, f.Close())
	if err := f.Put(0, block(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed file: %v", err)
	}
	if s := c.Stats(); s.Pages != 0 || s.Dirty != 0 {
		t.Errorf("a closed file is in the cache: %+v", s)
	}
	f, err = Open(c, path, testOwner, size)
	must(t, err)
	good(t, f, 3*pageSums, block(3)[:512])
	good(t, f, 5, block(4))
	must(t, f.Grow(5*pageSums*BlockSize))
	good(t, f, 3*pageSums, slices.Concat(block(3)[:512], make([]byte, BlockSize-512))) // the short block has grown by zeroes
	good(t, f, 5*pageSums-1, block(0))
	must(t, f.Grow(size)) // never shorter
	if f.Blocks() != 5*pageSums {
		t.Errorf("%d blocks", f.Blocks())
	}
	must(t, f.Zero(0, 5*pageSums))
	good(t, f, 5, block(0))
	must(t, f.Close())
}

func good(t *testing.T, f *File, first int64, data []byte) {
	t.Helper()
	if faults, err := f.Check(first, data); err != nil || len(faults) > 0 {
		t.Errorf("block %d of %s: %v, %v", first, filepath.Base(f.path), faults, err)
	}
}

func TestWrongFilesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lun.sums")
	const size = 20 * pageSums * BlockSize
	must(t, Create(path, testOwner, size, true))
	whole, err := os.ReadFile(path)
	must(t, err)
	other := testOwner
	other.LUN = uuid.MustParse("6f1c1c6e-52ad-4b33-9d32-000000000002")
	elsewhere := testOwner
	elsewhere.Store = other.LUN
	flip := func(at int) func([]byte) []byte {
		return func(p []byte) []byte { p[at] ^= 1; return p }
	}
	for name, x := range map[string]struct {
		owner  Owner
		change func([]byte) []byte
		want   string
	}{
		"empty":              {testOwner, func([]byte) []byte { return nil }, "has 0 bytes, not"},
		"cut off":            {testOwner, func(p []byte) []byte { return p[:len(p)-1] }, "bytes, not"},
		"something else":     {testOwner, func(p []byte) []byte { return make([]byte, len(p)) }, "magic"},
		"flipped seed":       {testOwner, flip(50), "does not match its checksum"},
		"flipped boundary":   {testOwner, flip(66), "does not match its checksum"},
		"flipped checksum":   {testOwner, flip(73), "does not match its checksum"},
		"of another LUN":     {other, func(p []byte) []byte { return p }, "belongs to LUN " + testOwner.LUN.String()},
		"of another store":   {elsewhere, func(p []byte) []byte { return p }, "belongs to store " + testOwner.Store.String()},
		"of a later release": {testOwner, func(p []byte) []byte { p[8] = 2; return reseal(p) }, "format 2, this release supports 1"},
	} {
		must(t, os.WriteFile(path, x.change(slices.Clone(whole)), 0o600))
		if f, err := Open(NewCache(0), path, x.owner, size); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o700))
	if f, err := Open(NewCache(0), path, testOwner, size); err == nil {
		t.Errorf("a folder: %v", f)
	}
}

// reseal gives a header the checksum of what it says.
func reseal(p []byte) []byte {
	copy(p[headerCRCAt:], crcOf(p[:headerCRCAt]))
	return p
}

func TestAdoptedBoundaryIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lun.sums")
	const blocks = 4 * pageSums
	must(t, Create(path, testOwner, blocks*BlockSize, false))
	open := func() *File {
		f, err := Open(NewCache(0), path, testOwner, blocks*BlockSize)
		must(t, err)
		return f
	}
	f := open()
	unknown := func(b int64) {
		t.Helper()
		if faults, err := f.Check(b, block(0)); err != nil || !slices.Equal(faults, []Fault{{b, Unknown}}) {
			t.Errorf("block %d: %v, %v, want it to be unknown", b, faults, err)
		}
	}
	unknown(0)
	unknown(blocks - 1)
	must(t, f.Put(blocks-1, block(5))) // a write to what is not adopted yet is checked from then on
	good(t, f, blocks-1, block(5))
	must(t, f.Put(0, slices.Concat(block(1), block(0))))
	unknown(1)
	must(t, f.Adopt(2))
	must(t, f.Adopt(1))
	must(t, f.Close()) // without a flush: Adopt has done it
	f = open()
	good(t, f, 0, slices.Concat(block(1), block(0)))
	unknown(2)
	must(t, f.Grow((blocks+1)*BlockSize))
	unknown(blocks)
	must(t, f.Adopt(blocks+1))
	good(t, f, blocks, block(0))
	good(t, f, 2, block(0))
	must(t, f.Grow((blocks+pageSums)*BlockSize))
	good(t, f, blocks+pageSums-1, block(0))
	must(t, f.Close())
}

func TestCloneHasTheSumsOfItsSource(t *testing.T) {
	dir := t.TempDir()
	const size = 30 * pageSums * BlockSize
	c := NewCache(0)
	must(t, Create(filepath.Join(dir, "a"), testOwner, size, true))
	f, err := Open(c, filepath.Join(dir, "a"), testOwner, size)
	must(t, err)
	must(t, f.Put(7, block(7)))
	must(t, f.Put(29*pageSums, block(8)))
	copyOf := testOwner
	copyOf.LUN = uuid.MustParse("6f1c1c6e-52ad-4b33-9d32-000000000003")
	if err := f.Clone(filepath.Join(dir, "b"), copyOf, size-BlockSize); !errors.Is(err, ErrRange) {
		t.Errorf("a shorter copy: %v", err)
	}
	must(t, f.Clone(filepath.Join(dir, "b"), copyOf, size+BlockSize))
	must(t, f.Put(7, block(9)))
	must(t, f.Flush())
	g, err := Open(c, filepath.Join(dir, "b"), copyOf, size+BlockSize)
	must(t, err)
	good(t, g, 7, block(7))
	good(t, g, 29*pageSums, block(8))
	good(t, g, 30*pageSums, block(0))
	good(t, f, 7, block(9))
	must(t, g.Put(8, block(1)))
	must(t, g.Flush())
	good(t, f, 8, block(0))
	from, to := filepath.Join(dir, "b"), filepath.Join(dir, "c")
	in, err := os.Open(from)
	must(t, err)
	out, err := os.Create(to)
	must(t, err)
	must(t, copyData(in, out)) // what a filesystem without shared extents gets
	a, err := os.ReadFile(from)
	must(t, err)
	b, err := os.ReadFile(to)
	must(t, err)
	if !slices.Equal(a, b) {
		t.Error("a copy of the data differs")
	}
	must(t, errors.Join(in.Close(), out.Close(), f.Close(), g.Close()))
}
