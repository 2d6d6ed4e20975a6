package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The kernel holds a folio's lock while it gives the blocks of the folio to the disk, and waits
// there when it has given the disk enough (blk-wbt). A folio may be 2 MiB. A write to another block
// of it waits for that lock, and all writes to the file wait behind that one. So not more is given
// to the disk at once than keeps it busy.
const (
	// pieceSize is the range of a file, in bytes, that is written out as one.
	pieceSize = 4 << 20
	// A batch ends with the piece that makes it as many writes, or as many bytes.
	batchWrites = 32
	batchBytes  = 8 << 20
)

// piece is what was written to a range of a file and is in the page cache only.
type piece struct {
	number int64 // the range begins at number*pieceSize
	bytes  int64
	writes int
}

// pieces is what a file has in the page cache. It is protected by the volume's writeback.mu.
type pieces struct {
	of     map[int64]piece // by number
	order  []int64         // of their first writes, from first on
	first  int
	queued bool // the file is in writeback.files
}

func (p *pieces) any() bool { return len(p.of) > 0 }

// add counts a write.
func (p *pieces) add(off, length int64) {
	if p.of == nil {
		p.of = map[int64]piece{}
	}
	for length > 0 {
		n := min(length, pieceSize-off%pieceSize)
		x, ok := p.of[off/pieceSize]
		if !ok {
			x.number = off / pieceSize
			p.order = append(p.order, x.number)
		}
		x.bytes += n
		x.writes++
		p.of[x.number] = x
		off, length = off+n, length-n
	}
}

// batch takes the oldest pieces.
func (p *pieces) batch() (b []piece) {
	for p.first < len(p.order) && !enough(b) {
		n := p.order[p.first]
		p.first++
		b = append(b, p.of[n])
		delete(p.of, n)
	}
	switch {
	case p.first == len(p.order):
		p.order, p.first = p.order[:0], 0
	case p.first >= 1024: // else what is never empty would grow for ever
		p.order, p.first = append(p.order[:0], p.order[p.first:]...), 0
	}
	return b
}

// all takes all pieces.
func (p *pieces) all() (b []piece) {
	for _, n := range p.order[p.first:] {
		b = append(b, p.of[n])
	}
	clear(p.of)
	p.order, p.first = p.order[:0], 0
	return b
}

func enough(b []piece) bool { return writesOf(b) >= batchWrites || bytesOf(b) >= batchBytes }

// batchLength is how many pieces of a list make a batch.
func batchLength(list []piece) int {
	for i := range list {
		if enough(list[:i+1]) {
			return i + 1
		}
	}
	return len(list)
}

func bytesOf(b []piece) (n int64) {
	for _, x := range b {
		n += x.bytes
	}
	return n
}

func writesOf(b []piece) (n int) {
	for _, x := range b {
		n += x.writes
	}
	return n
}

// writeOutBatch writes pieces to the disk, side by side, and waits for that.
func (f *image) writeOutBatch(b []piece) error {
	if len(b) > 1 {
		for i := range b {
			f.startOut(b[i].number*pieceSize, pieceSize)
		}
	}
	for _, x := range b {
		if whole, err := f.writeOut(x.number*pieceSize, pieceSize); whole || err != nil {
			return err
		}
	}
	return nil
}

// startOut gives a range of a file to the disk, and does not wait. A failure is met again by
// writeOut.
func (f *image) startOut(off, length int64) {
	_ = f.control(func(fd int) error { return unix.SyncFileRange(fd, off, length, unix.SYNC_FILE_RANGE_WRITE) })
}

// writeOut writes a range of a file to the disk and waits for it. Unlike Sync it neither writes
// what is needed to find the data again nor empties the disk's own cache: it makes room, no
// promise. A failure is final, as for Sync: the kernel reports a lost page once, and it has just
// done so (R12). Where the kernel has no call for it, the whole file is flushed.
func (f *image) writeOut(off, length int64) (whole bool, err error) {
	whole, err = f.writeRange(off, length)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		f.s.fail(err)
	}
	return whole, err
}

func (f *image) writeRange(off, length int64) (whole bool, err error) {
	if err := f.s.fault(FaultWriteback, f.path, off, length); err != nil {
		return false, classify("writeback", f.path, err)
	}
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err = f.control(func(fd int) error { return unix.SyncFileRange(fd, off, length, all) })
	switch {
	case err == nil, errors.Is(err, os.ErrClosed):
		return false, err
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESPIPE), errors.Is(err, unix.EPERM):
		if err := f.control(unix.Fdatasync); err != nil { // a kernel or a seccomp profile without the call
			return false, fmt.Errorf("writeback of %s: %w", f.path, err)
		}
		return true, nil
	}
	return false, classify("writeback", f.path, err)
}
