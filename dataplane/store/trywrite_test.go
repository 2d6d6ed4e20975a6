package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// A write that waits for nothing is one like every other: content, checksums and what counts as not
// flushed. With a model of the content it is mixed with others.
func TestTryWriteIsAWrite(t *testing.T) {
	for name, opts := range map[string]Options{"checksums": withSums(), "none": {}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, filepath.Join(testDisk(t, slowdisk.MinSize).Mount, "store"), opts)
			f := newLUN(t, s, lunA, 8<<20)
			data := content(1, 8192)
			must(t, f.WriteAt(data, 4096)) // space for checksums is kept now
			tried := 0
			for i := range uint64(50) {
				data = content(i, 8192)
				if f.TryWrite(data, 4096) {
					tried++
				} else {
					must(t, f.WriteAt(data, 4096))
				}
				reads(t, f, 4096, data)
			}
			if tried == 0 && !triedSoon(t, f, data, 4096) {
				t.Error("no write of blocks in memory is done without a wait")
			}
			if f.wb.dirty.Load() == 0 {
				t.Error("what was written does not count as not flushed")
			}
			must(t, f.Checkpoint())
			if d := f.wb.dirty.Load(); d != 0 {
				t.Errorf("%d bytes count as not flushed after a flush", d)
			}
			must(t, f.Close())
			f = openLUN(t, s, lunA)
			reads(t, f, 4096, data)
			if opts.Sums == nil && !triedSoon(t, f, data, 4096) {
				t.Error("a block in the page cache cannot be written without a wait")
			}
			if n := testing.AllocsPerRun(100, func() { f.TryWrite(data, 4096) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// triedSoon tries until a write waits for nothing: the kernel may be at work on the file, or have
// to read its extents first, which a write that may wait does.
func triedSoon(t *testing.T, f *File, p []byte, off int64) bool {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f.TryWrite(p, off) {
			return true
		}
		must(t, f.WriteAt(p, off))
	}
	return false
}

// Whatever has to come before a write keeps it from being done without a wait.
func TestTryWriteLeavesWhatWaits(t *testing.T) {
	s := open(t, filepath.Join(testDisk(t, slowdisk.MinSize).Mount, "store"), withSums())
	f := newLUN(t, s, lunA, 8<<20)
	data := content(1, 4096)
	must(t, f.WriteAt(data, 0))
	if !triedSoon(t, f, data, 0) {
		t.Error("a block in memory cannot be written without a wait")
	}
	for name, c := range map[string]struct {
		off int64
		len int
	}{"part of a block": {100, 4096}, "less than a block": {0, 512}, "nothing": {0, 0}, "beyond the end": {8 << 20, 4096}, "before the beginning": {-4096, 4096}} {
		if f.TryWrite(data[:c.len], c.off) {
			t.Errorf("%s is written without a wait", name)
		}
	}
	f.wb.dirty.Add(f.wb.limit.Load())
	if f.TryWrite(data, 0) {
		t.Error("a write that has to wait for the disk to get on does not")
	}
	f.wb.dirty.Add(-f.wb.limit.Load())
	s.fail(os.ErrInvalid)
	if f.TryWrite(data, 0) {
		t.Error("a store that has failed is written to")
	}
}

// A disk that answers nothing holds no one up who tries to write: the block is not in memory, and
// its checksum is not either.
func TestTryWriteDoesNotWaitForTheDisk(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	s := open(t, filepath.Join(d.Mount, "store"), withSums())
	f := newLUN(t, s, lunA, 8<<20)
	data := content(3, 4096)
	must(t, f.WriteAt(data, 0))
	must(t, f.Checkpoint())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must(t, d.Set(ctx, slowdisk.Knobs{Stuck: true}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for off := int64(0); off < 8<<20; off += 256 << 10 {
			f.TryWrite(data, off)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Error("it waits for a disk that is stuck")
	}
	must(t, d.Set(t.Context(), slowdisk.Knobs{}))
	<-done
}

// Under faults, which may wait, only what is said to be in memory is tried, and meets them.
func TestTryWriteUnderFaults(t *testing.T) {
	met, cached := 0, false
	_, f := lunFile(t, Options{
		Faults: func(op, _ string, _, _ int64) error {
			if op == FaultWrite {
				met++
			}
			return nil
		},
		Cached: func(string, int64, int64) bool { return cached },
	})
	data := content(1, 4096)
	if f.TryWrite(data, 0) || met > 0 {
		t.Error("a write meets a fault that may wait")
	}
	cached = true
	if !f.TryWrite(data, 0) || met != 1 {
		t.Errorf("%d faults were met", met)
	}
	reads(t, f, 0, data)
}
