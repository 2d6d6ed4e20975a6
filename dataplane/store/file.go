package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// File is an open LUN. Methods are safe for concurrent use; order between overlapping operations is
// the caller's (range locks). Offsets and lengths are bytes. Open one File per LUN: flushes are
// coalesced per File.
type File struct {
	s    *Store
	f    *os.File
	raw  syscall.RawConn
	path string // relative to the store's directory
	sync syncGroup

	durables durables

	probing probing
	waits   atomic.Bool // the filesystem cannot say whether a write waits (TryWrite)
	wb      *writeback
	pieces  pieces
	witness witness

	obj      *object // nil: no checksums
	released atomic.Bool

	reflink bool                 // its filesystem shares extents
	out, in atomic.Pointer[Copy] // an incomplete copy of it, and what it is an incomplete copy of
}

func (v *BackingVolume) openFile(path, rel string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	x := &File{s: v.s, f: f, raw: raw, path: rel, wb: v.writeback, reflink: v.reflink}
	x.reserveOneBlock()
	if err := x.lookAt(); err != nil {
		f.Close()
		return nil, err
	}
	return x, nil
}

// ReadAt fills p from off. Holes read as zero; reading beyond the end is ErrRange. A failed read
// does not make the store untrusted, nor does a ChecksumError, which leaves p undefined. With
// checksums whole blocks are read, over which the caller's lock of the range has to reach.
func (f *File) ReadAt(p []byte, off int64) error {
	if f.obj == nil {
		return f.readRaw(p, off)
	}
	return f.readChecked(p, off)
}

// readRaw is ReadAt of what is in the file, whatever its checksums say.
func (f *File) readRaw(p []byte, off int64) error {
	if c := f.in.Load(); c != nil {
		if err := c.need(off, int64(len(p))); err != nil {
			return err
		}
	}
	if f.s.faults != nil {
		if err := f.s.faults(FaultRead, f.path, off, int64(len(p))); err != nil {
			return classify("read", f.path, err)
		}
	}
	n, err := f.f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		if f.obj != nil && off >= 0 && off+int64(len(p)) <= f.obj.size.Load() {
			clear(p[n:]) // the image was cut: the checksums tell what that has lost
			return nil
		}
		return fmt.Errorf("read %s at %d+%d: %w", f.path, off, len(p), ErrRange)
	}
	return classify("read", f.path, err)
}

// WriteAt puts p at off into the page cache; Sync makes it durable. ErrNoSpace leaves the store
// trusted, any other failure does not (R12). The caller keeps within the size: a write beyond it
// would grow the file. It waits while more of the backing volume is not flushed than its disk
// writes in a quarter of a second. With checksums the blocks that are written in part are read
// before, and the caller's lock of the range has to reach over whole blocks.
func (f *File) WriteAt(p []byte, off int64) error { return f.change(opWrite, p, off, int64(len(p))) }

func (f *File) writeRaw(p []byte, off int64) error {
	f.wb.wait(int64(len(p)))
	if err := f.beforeWrite(FaultWrite, off, int64(len(p))); err != nil {
		return err
	}
	n, err := f.f.WriteAt(p, off)
	f.wb.wrote(f, off, int64(n))
	if n == len(p) {
		return nil
	}
	return f.writeError("write", err)
}

// Discard frees the blocks that lie wholly in the range and zeroes the rest of it: all of it reads
// as zero after.
func (f *File) Discard(off, length int64) error { return f.change(opDiscard, nil, off, length) }

func (f *File) discardRaw(off, length int64) error {
	if length == 0 {
		return nil
	}
	if err := f.beforeWrite(FaultDiscard, off, length); err != nil {
		return err
	}
	err := f.control(func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.writeZeroes(off, length)
	}
	if err != nil {
		return f.writeError("discard", err)
	}
	return nil
}

// Zero makes the range read as zero by the cheapest means, which is a hole.
func (f *File) Zero(off, length int64) error { return f.Discard(off, length) }

var zeroes [256 << 10]byte

func (f *File) writeZeroes(off, length int64) error {
	for length > 0 {
		n := min(length, int64(len(zeroes)))
		f.wb.wait(n)
		if _, err := f.f.WriteAt(zeroes[:n], off); err != nil {
			return err
		}
		f.wb.wrote(f, off, n)
		off, length = off+n, length-n
	}
	return nil
}

// Sync returns when everything written before the call is durable (fdatasync). Concurrent calls
// share: each is satisfied by any fdatasync that began after it was made. A failure is final: it is
// not retried, and every later Sync fails (R12), because the kernel reports a lost page once and
// then calls it clean.
func (f *File) Sync() error {
	if err := f.s.Failed(); err != nil {
		return err
	}
	return f.sync.do(f.flush)
}

func (f *File) flush() error {
	// Checked again: the failure may have come while this flush waited for the one before it.
	if err := f.s.Failed(); err != nil {
		return err
	}
	left := f.wb.pace(f)
	defer f.wb.flushed(left)
	if err := f.s.Failed(); err != nil {
		return err
	}
	err := f.s.fault(FaultSync, f.path, 0, 0)
	if err == nil {
		err = f.wb.flush(func() error { return f.control(unix.Fdatasync) })
	}
	if errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("sync %s: %w", f.path, err)
	}
	if err != nil {
		err = classify("sync", f.path, err)
		f.s.fail(err) // no space included: written data has no place, and it is too late to report that to its writer
		return err
	}
	return nil
}

// Extents looks at [off, off+length): it returns the length of the run that starts at off, cut at
// the end of the range, and whether that run is data or a hole. Data may still read as zero; a hole
// always does.
func (f *File) Extents(off, length int64) (run int64, data bool, err error) {
	if length <= 0 {
		return 0, false, fmt.Errorf("extents of %s at %d+%d: %w", f.path, off, length, ErrRange)
	}
	if c := f.in.Load(); c != nil {
		length = min(length, copyRegion) // and not all that follows, for the sake of the first run
		if err := c.need(off, length); err != nil {
			return 0, false, err
		}
	}
	return f.extents(off, length)
}

// extents is Extents of what is in the file.
func (f *File) extents(off, length int64) (run int64, data bool, err error) {
	var next int64
	err = f.control(func(fd int) error {
		var err error
		next, err = unix.Seek(fd, off, unix.SEEK_DATA)
		if err != nil {
			return err
		}
		if data = next == off; data {
			next, err = unix.Seek(fd, off, unix.SEEK_HOLE)
		}
		return err
	})
	switch {
	case errors.Is(err, unix.ENXIO): // no data from off to the end
		return length, false, nil
	case err != nil:
		return 0, false, classify("extents", f.path, err)
	}
	return min(next-off, length), data, nil
}

// Size is the LUN's size.
func (f *File) Size() (int64, error) {
	st, err := f.f.Stat()
	if err != nil {
		return 0, classify("stat", f.path, err)
	}
	return st.Size(), nil
}

// Allocated is what the LUN occupies in the backing volume. Extents shared by reflink are counted
// in every sharer.
func (f *File) Allocated() (int64, error) {
	st, err := f.f.Stat()
	if err != nil {
		return 0, classify("stat", f.path, err)
	}
	return st.Sys().(*syscall.Stat_t).Blocks * 512, nil
}

// Close closes the file. It does not flush the data; the last one of a LUN flushes its checksums.
func (f *File) Close() error {
	f.wb.flushed(bytesOf(f.wb.take(f))) // the kernel will see to it
	err := errors.Join(f.f.Close(), f.witness.close())
	if f.obj != nil && !f.released.Swap(true) {
		err = errors.Join(err, f.obj.release())
	}
	return err
}

func (f *File) beforeWrite(op string, off, length int64) error {
	if p := f.s.failed.Load(); p != nil {
		return *p
	}
	if f.s.faults != nil {
		if err := f.s.faults(op, f.path, off, length); err != nil {
			return f.writeError(op, err)
		}
	}
	return nil
}

// writeError classifies the failure of a change and makes the store untrusted unless it is only
// full.
func (f *File) writeError(op string, err error) error {
	if errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("%s %s: %w", op, f.path, err)
	}
	err = classify(op, f.path, err)
	if !errors.Is(err, ErrNoSpace) {
		f.s.fail(err)
	}
	return err
}

// control runs fn with the descriptor, which stays open meanwhile, and repeats it when a signal cut
// it short.
func (f *File) control(fn func(fd int) error) error {
	return fd.Control(f.raw, fn)
}

// syncGroup lets callers share flushes. A flush that is already under way does not count for a
// caller: it may have passed the caller's data by.
type syncGroup struct {
	mu      sync.Mutex
	cond    *sync.Cond
	begun   uint64 // flushes begun
	ended   uint64 // flushes ended; they run one at a time
	running bool
	err     error // the first failure, final
}

// busy reports that a flush is under way.
func (g *syncGroup) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

func (g *syncGroup) do(flush func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cond == nil {
		g.cond = sync.NewCond(&g.mu)
	}
	want := g.begun + 1
	for g.ended < want && g.err == nil {
		if g.running {
			g.cond.Wait()
			continue
		}
		g.running = true
		g.begun++
		g.mu.Unlock()
		err := flush()
		g.mu.Lock()
		g.running = false
		g.ended = g.begun
		if err != nil {
			g.err = err
		}
		g.cond.Broadcast()
	}
	return g.err
}
