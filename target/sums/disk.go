package sums

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// disk is a file of the operating system.
type disk struct {
	*os.File
	path  string
	hooks *Hooks
}

func (d disk) ask(off, length int64) error {
	if d.hooks.Write == nil {
		return nil
	}
	return d.hooks.Write(d.path, off, length)
}

func (d disk) WriteAt(p []byte, off int64) (int, error) {
	if err := d.ask(off, int64(len(p))); err != nil {
		return 0, err
	}
	return d.File.WriteAt(p, off)
}

func (d disk) Sync() error {
	if d.hooks.Sync != nil {
		if err := d.hooks.Sync(d.path); err != nil {
			return err
		}
	}
	return fd.Datasync(d.File)
}

func (d disk) Extend(size int64) error {
	if err := d.ask(0, size); err != nil {
		return err
	}
	return extend(d.File, size)
}

// extend makes a file at least size bytes long, with space for all of it where the filesystem can
// keep some. What was not written before reads as zero.
func extend(f *os.File, size int64) error {
	err := allocate(f, 0, 0, size)
	if !unsupported(err) {
		return err
	}
	st, err := f.Stat()
	if err != nil || st.Size() >= size {
		return err
	}
	return f.Truncate(size)
}

// Zero keeps the space, but for that of extents that are shared with a clone, and of which there is
// no other: these it gives up, since a hole needs none.
func (d disk) Zero(off, length int64) error {
	if err := d.ask(off, length); err != nil {
		return err
	}
	err := allocate(d.File, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	if unsupported(err) {
		return writeZeroes(d.File, off, length)
	}
	if full(err) && allocate(d.File, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length) == nil {
		return nil
	}
	return err
}

func writeZeroes(f *os.File, off, length int64) error {
	var zero [64 << 10]byte
	for length > 0 {
		n := min(length, int64(len(zero)))
		if _, err := f.WriteAt(zero[:n], off); err != nil {
			return err
		}
		off, length = off+n, length-n
	}
	return nil
}

func allocate(f *os.File, mode uint32, off, length int64) error {
	return fd.With(f, func(fd int) error { return unix.Fallocate(fd, mode, off, length) })
}

func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}
