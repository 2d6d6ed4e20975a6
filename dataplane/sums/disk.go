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
	st, err := d.Stat()
	if err != nil || st.Size() >= size {
		return err
	}
	return d.Truncate(size)
}

// Keep reserves space for a range in the filesystem, if the filesystem can.
func (d disk) Keep(off, length int64) error {
	if err := d.ask(off, length); err != nil {
		return err
	}
	err := allocate(d.File, unix.FALLOC_FL_KEEP_SIZE, off, length)
	if unsupported(err) {
		return nil
	}
	return err
}

// Zero gives the space back.
func (d disk) Zero(off, length int64) error {
	if err := d.ask(off, length); err != nil {
		return err
	}
	err := allocate(d.File, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	if unsupported(err) {
		return writeZeroes(d.File, off, length)
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
