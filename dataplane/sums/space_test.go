package sums

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoSpaceIsNotFinal: what finds no space stays in memory, whatever the budget, and is written
// when there is some.
func TestNoSpaceIsNotFinal(t *testing.T) {
	for _, why := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		c := NewCache(0)
		c.limit = 4
		told := 0
		c.Hooks.Failed = func(error) { told++ }
		r := newRAM(t, testBlocks*BlockSize, true)
		f := openRAM(t, c, r, testBlocks*BlockSize)
		other := newRAM(t, testBlocks*BlockSize, true)
		g := openRAM(t, c, other, testBlocks*BlockSize)
		must(t, f.Set(3*pageSums, []Sum{1}))
		must(t, f.Flush())
		r.fail = func(op string) error {
			if op == "write" || op == "zero" {
				return &os.PathError{Op: op, Err: why}
			}
			return nil
		}
		for p := range int64(20) {
			must(t, f.Set(p*pageSums, []Sum{Sum(p + 7)}))
		}
		must(t, g.Set(5, []Sum{5})) // its own file has space: it is not held up
		if err := f.Flush(); !errors.Is(err, why) || f.Failed() != nil || told != 0 {
			t.Fatalf("%v, failed: %v", err, f.Failed())
		}
		must(t, g.Flush())
		must(t, f.Zero(20*pageSums-1, 20*pageSums))
		if err := f.Adopt(5); err != nil && !errors.Is(err, why) {
			t.Fatal(err)
		}
		look := func(f *File) {
			t.Helper()
			for p := range int64(20) {
				var got [1]Sum
				must(t, f.Get(p*pageSums, got[:]))
				if got[0] != Sum(p+7) {
					t.Errorf("page %d: %d", p, got[0])
				}
			}
		}
		look(f)
		if !f.Unflushed() {
			t.Error("nothing to flush")
		}
		r.fail = nil
		must(t, f.Flush())
		if f.Unflushed() {
			t.Error("something to flush after a flush")
		}
		look(openRAM(t, NewCache(0), r, testBlocks*BlockSize))
	}
}

// TestNoSpaceInAFlushIsFinal: the flush of a file that has no space for what was written before
// tells of a loss.
func TestNoSpaceInAFlushIsFinal(t *testing.T) {
	c := NewCache(0)
	var told []error
	c.Hooks.Failed = func(err error) { told = append(told, err) }
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, c, r, testBlocks*BlockSize)
	must(t, f.Set(0, []Sum{1}))
	r.fail = func(op string) error {
		if op == "sync" {
			return syscall.ENOSPC
		}
		return nil
	}
	if err := f.Flush(); !errors.Is(err, syscall.ENOSPC) || f.Failed() == nil || len(told) != 1 {
		t.Errorf("%v, told: %v", err, told)
	}
	must(t, f.Close())
	if len(told) != 1 {
		t.Errorf("told %v", told)
	}
}

// TestWriteOutFailsForAnother: who gets a failure that only another file's change found.
func TestWriteOutFailsForAnother(t *testing.T) {
	c := NewCache(0)
	c.limit = 2
	told := make(chan error, 1)
	c.Hooks.Failed = func(err error) { told <- err }
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, c, r, testBlocks*BlockSize)
	g := openRAM(t, c, newRAM(t, testBlocks*BlockSize, true), testBlocks*BlockSize)
	must(t, f.Set(0, []Sum{1}))
	r.fail = func(string) error { return syscall.EIO }
	must(t, g.Set(0, []Sum{1}))
	must(t, g.Set(pageSums, []Sum{1}))
	if f.Failed() == nil {
		must(t, g.Set(2*pageSums, []Sum{1}))
		_ = f.Flush()
	}
	if err := <-told; !errors.Is(err, syscall.EIO) || g.Failed() != nil {
		t.Errorf("%v, %v", err, g.Failed())
	}
}

// TestSpaceIsKept: what is about to be written has space, a large LUN costs none, and a discard
// gives it back.
func TestSpaceIsKept(t *testing.T) {
	dir := t.TempDir()
	probe, err := os.Create(filepath.Join(dir, "probe"))
	must(t, err)
	if unsupported(allocate(probe, unix.FALLOC_FL_KEEP_SIZE, 0, 4096)) {
		t.Skip("skipped: the filesystem of this test's folder cannot keep space")
	}
	must(t, probe.Close())
	const size = 16 << 40 // 16 GiB of checksums
	path := filepath.Join(dir, "a")
	must(t, Create(path, testOwner, size, true))
	allocated := func() int64 {
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		if st.Size != fileSize(Blocks(size)) && st.Size != fileSize(Blocks(2*size)) {
			t.Errorf("%d bytes", st.Size)
		}
		return st.Blocks * 512
	}
	if n := allocated(); n > 64<<10 {
		t.Errorf("a new one has %d bytes", n)
	}
	f, err := Open(NewCache(0), path, testOwner, size)
	must(t, err)
	must(t, f.Reserve(1<<20, 3))
	must(t, f.Reserve(Blocks(size)-1, 1))
	if n := allocated(); n < (2*keepPages-4)*pageSize/2 || n > 512<<10 {
		t.Errorf("%d bytes are kept for two chunks", n)
	}
	must(t, f.Set(1<<20, []Sum{1, 2, 3}))
	must(t, f.Flush())
	must(t, f.Zero(0, Blocks(size)))
	var got [3]Sum
	must(t, f.Get(1<<20, got[:]))
	if n := allocated(); got != [3]Sum{} || n > 128<<10 {
		t.Errorf("after a discard: %v, %d bytes", got, n)
	}
	must(t, f.Reserve(1<<20, 3))
	if n := allocated(); n < 32<<10 {
		t.Errorf("%d bytes are kept again", n)
	}
	must(t, f.Grow(2*size))
	must(t, f.Close())
}

// TestNoSpaceToReserve: it is reported before anything is written, and is not final.
func TestNoSpaceToReserve(t *testing.T) {
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, NewCache(0), r, testBlocks*BlockSize)
	r.fail = func(op string) error {
		if op == "keep" {
			return syscall.ENOSPC
		}
		return nil
	}
	if err := f.Reserve(5, 3); !errors.Is(err, syscall.ENOSPC) || f.Failed() != nil {
		t.Errorf("%v, failed %v", err, f.Failed())
	}
	r.fail = nil
	must(t, f.Reserve(5, 3))
	r.fail = func(string) error { return syscall.ENOSPC }
	must(t, f.Reserve(5, 3)) // it has it
	if err := f.Reserve(testBlocks, 1); err != nil {
		t.Errorf("beyond the end: %v", err)
	}
}

func TestHooksTakeTheirPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	const size = 200 * pageSums * BlockSize
	must(t, Create(path, testOwner, size, true))
	c := NewCache(0)
	var write, flush error
	c.Hooks = Hooks{
		Write: func(p string, _, _ int64) error { return errors.Join(write, wrongPath(p, path)) },
		Sync:  func(p string) error { return errors.Join(flush, wrongPath(p, path)) },
	}
	open := func() *File {
		f, err := Open(c, path, testOwner, size)
		must(t, err)
		t.Cleanup(func() { _ = f.Close() })
		must(t, f.Set(0, []Sum{1}))
		return f
	}
	f := open()
	must(t, f.Flush())
	write = syscall.ENOSPC
	must(t, f.Set(0, []Sum{1}))
	if err := f.Flush(); !errors.Is(err, write) || f.Failed() != nil {
		t.Errorf("a write without space: %v, %v", err, f.Failed())
	}
	if err := f.Grow(2 * size); !errors.Is(err, write) || f.Failed() != nil {
		t.Errorf("longer without space: %v, %v", err, f.Failed())
	}
	must(t, f.Zero(0, 100*pageSums)) // in memory
	write = nil
	must(t, f.Flush())
	flush = syscall.EIO
	must(t, f.Set(0, []Sum{1}))
	if err := f.Flush(); !errors.Is(err, flush) || f.Failed() == nil {
		t.Errorf("a flush: %v, %v", err, f.Failed())
	}
}

func wrongPath(got, want string) error {
	if got != want {
		return errors.New(got)
	}
	return nil
}

func TestNoAllocation(t *testing.T) {
	const size = 16 * pageSums * BlockSize
	f := openRAM(t, NewCache(0), newRAM(t, size, true), size)
	data := slices.Concat(block(3), block(4), block(5), make([]byte, 60*BlockSize))
	must(t, f.Put(7, data))
	if n := testing.AllocsPerRun(200, func() {
		if err := f.Put(7, data); err != nil {
			t.Error(err)
		}
		if faults, err := f.Check(7, data); err != nil || faults != nil {
			t.Error(faults, err)
		}
		if ok, known := f.CheckCached(7, data); !ok || !known {
			t.Error("not in the cache")
		}
	}); n != 0 {
		t.Errorf("%v allocations for a put and two checks", n)
	}
}
