package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// image is an open file of a backing volume in which a LUN or a snapshot lies. It knows nothing of
// checksums, and nothing of copies.
type image struct {
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

	reflink bool  // its filesystem shares extents
	number  uint8 // of the member in which it lies
}

func openImage(s *Store, wb *writeback, reflink bool, path, rel string) (*image, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	x := &image{s: s, f: f, raw: raw, path: rel, wb: wb, reflink: reflink, number: homeNumber}
	x.reserveOneBlock()
	if err := x.lookAt(); err != nil {
		f.Close()
		return nil, err
	}
	return x, nil
}

// read reads all of p, or says why it cannot; io.EOF: the image ends after n bytes.
func (f *image) read(p []byte, off int64) (n int, err error) {
	if f.s.faults != nil {
		if err := f.s.faults(FaultRead, f.path, off, int64(len(p))); err != nil {
			return 0, classify("read", f.path, err)
		}
	}
	n, err = f.f.ReadAt(p, off)
	if n == len(p) {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, classify("read", f.path, err)
}

func (f *image) writeRaw(p []byte, off int64) error {
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

func (f *image) discardRaw(off, length int64) error {
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

var zeroes [256 << 10]byte

func (f *image) writeZeroes(off, length int64) error {
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
func (f *image) Sync() error {
	if err := f.s.Failed(); err != nil {
		return err
	}
	return f.sync.do(f.flush)
}

func (f *image) flush() error {
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

// extents is Extents of what is in the file.
func (f *image) extents(off, length int64) (run int64, data bool, err error) {
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

// Allocated is what the LUN occupies in the backing volume. Extents shared by reflink are counted
// in every sharer.
func (f *image) Allocated() (int64, error) {
	st, err := f.f.Stat()
	if err != nil {
		return 0, classify("stat", f.path, err)
	}
	return st.Sys().(*syscall.Stat_t).Blocks * 512, nil
}

func (f *image) beforeWrite(op string, off, length int64) error {
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
func (f *image) writeError(op string, err error) error {
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
func (f *image) control(fn func(fd int) error) error {
	return fd.Control(f.raw, fn)
}

// close closes the file. It does not flush the data.
func (f *image) close() error {
	f.wb.flushed(bytesOf(f.wb.take(f))) // the kernel will see to it
	return errors.Join(f.f.Close(), f.witness.close())
}
