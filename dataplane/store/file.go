package store

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// File is an open LUN. Methods are safe for concurrent use; order between overlapping operations is
// the caller's (range locks). Offsets and lengths are bytes. Open one File per LUN: flushes are
// coalesced per File.
type File struct {
	*image

	obj      *object // nil: no checksums
	released atomic.Bool

	places *places // nil: all of it lies in the image
	left   atomic.Bool

	out, in atomic.Pointer[Copy] // an incomplete copy of it, and what it is an incomplete copy of
}

func (v *BackingVolume) openFile(path, rel string) (*File, error) {
	x, err := openImage(v.s, v.writeback, v.reflink, path, rel)
	if err != nil {
		return nil, err
	}
	return &File{image: x}, nil
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
	if f.places == nil {
		return f.readImage(f.image, p, off)
	}
	return f.each(off, int64(len(p)), func(x *image, at, n int64) error { return f.readImage(x, p[at-off:][:n], at) })
}

// WriteAt puts p at off into the page cache; Sync makes it durable. ErrNoSpace leaves the store
// trusted, any other failure does not (R12). The caller keeps within the size: a write beyond it
// would grow the file. It waits while more of the backing volume is not flushed than its disk
// writes in a quarter of a second. With checksums the blocks that are written in part are read
// before, and the caller's lock of the range has to reach over whole blocks.
func (f *File) WriteAt(p []byte, off int64) error { return f.change(opWrite, p, off, int64(len(p))) }

// Discard frees the blocks that lie wholly in the range and zeroes the rest of it: all of it reads
// as zero after.
func (f *File) Discard(off, length int64) error { return f.change(opDiscard, nil, off, length) }

// Zero makes the range read as zero by the cheapest means, which is a hole.
func (f *File) Zero(off, length int64) error { return f.Discard(off, length) }

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

// Size is the LUN's size.
func (f *File) Size() (int64, error) {
	st, err := f.f.Stat()
	if err != nil {
		return 0, classify("stat", f.path, err)
	}
	return st.Size(), nil
}

// Close closes the file. It does not flush the data; the last one of a LUN flushes its checksums.
func (f *File) Close() error {
	err := errors.Join(f.closePlaces(), f.image.close())
	if f.obj != nil && !f.released.Swap(true) {
		err = errors.Join(err, f.obj.release())
	}
	return err
}
