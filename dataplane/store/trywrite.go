package store

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/sums"
)

// TryWrite is WriteAt if that waits for nothing: neither for the disk nor for another user of the
// file. False: WriteAt has to be asked, which does all of it and says why if it cannot; until then
// a part of p may be written, and its checksums not be.
func (f *File) TryWrite(p []byte, off int64) bool {
	if f.s.faults != nil { // a fault may be a wait
		return f.s.cached != nil && f.s.cached(f.path, off, int64(len(p))) && f.WriteAt(p, off) == nil
	}
	if f.out.Load() != nil || f.in.Load() != nil || f.s.Failed() != nil {
		return false
	}
	first, n := off/sumBlock, sums.Blocks(int64(len(p)))
	if o := f.obj; o != nil {
		switch {
		case off < 0 || len(p) == 0 || (off|int64(len(p)))%sumBlock != 0 || first+n > o.sums.Blocks():
			return false
		case o.sums.Adopted() != sums.AllAdopted || !o.sums.Reserved(first, n) || !o.sums.Cached(first, n):
			return false
		}
	}
	if !f.tryWrite(p, off) {
		return false
	}
	if f.obj == nil {
		return true
	}
	c := changed{p: p, off: off, end: off + int64(len(p)), from: off, to: off + int64(len(p))}
	return f.putSums(&c) == nil
}

// tryWrite writes p into the page cache if that waits for nothing.
func (f *image) tryWrite(p []byte, off int64) bool {
	if f.waits.Load() || f.wb.full() || !f.writeNowait(p, off) {
		return false
	}
	f.wb.wrote(f, off, int64(len(p)))
	return true
}

func (f *image) writeNowait(p []byte, off int64) bool {
	if f.probing == probeMemory {
		n, err := f.f.WriteAt(p, off)
		return err == nil && n == len(p)
	}
	n, err := f.attempt(writing, p, off)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		f.waits.Store(true) // the filesystem cannot tell
	}
	return err == nil && n == len(p)
}
