package sums

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// Clone makes the file of a copy of this object, of size bytes, durably: a snapshot, or what is
// made from one. What the copy is longer by is zero. Nothing is changed meanwhile: the caller keeps
// writes away (R14). Where the filesystem shares extents, it costs as much as there are extents,
// else as much as there are checksums.
//
// What is put meanwhile all the same, by a read that settles what was not known, is in the copy or
// not: no write-out is under way, which a copy of the data could see half of.
func (f *File) Clone(path string, owner Owner, size int64) error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	if err := f.flushLocked(); err != nil {
		return err
	}
	d, ok := f.m.(disk)
	if !ok {
		return fmt.Errorf("%s: not a file of the operating system", f.path)
	}
	if Blocks(size) < f.Blocks() {
		return fmt.Errorf("%s: %w: a copy of %d bytes", f.path, ErrRange, size)
	}
	h := f.head
	h.owner, h.adopted = owner, f.Adopted()
	return publish(path, func(to *os.File) error {
		if err := share(d.File, to); err != nil {
			return err
		}
		if err := to.Truncate(fileSize(Blocks(size))); err != nil {
			return err
		}
		return h.write(to)
	})
}

// share makes to a copy of from, by shared extents where that is possible.
func share(from, to *os.File) error {
	err := fd.With(from, func(in int) error {
		return fd.With(to, func(out int) error { return unix.IoctlFileClone(out, in) })
	})
	if err == nil || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EIO) {
		return err
	}
	return copyData(from, to)
}

// copyData copies what is not a hole.
func copyData(from, to *os.File) error {
	st, err := from.Stat()
	if err != nil {
		return err
	}
	for at := int64(0); at < st.Size(); {
		data, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return err
		}
		if at, err = from.Seek(data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(to, data), io.NewSectionReader(from, data, at-data)); err != nil {
			return err
		}
	}
	return to.Truncate(st.Size())
}
