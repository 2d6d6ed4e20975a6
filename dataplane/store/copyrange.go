package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/sums"
)

// copyBuffers are of one piece.
var copyBuffers = sync.Pool{New: func() any { return new([copyPiece]byte) }}

// move copies a range, with its checksums. Nothing writes to the source there meanwhile, and
// nothing else to the copy.
func (c *Copy) move(off, length int64, w way) error {
	if err := c.src.settleRange(off, length); err != nil {
		return err
	}
	lost, err := c.moveData(off, length, w)
	if err != nil {
		return err
	}
	if err := c.moveSums(off, length); err != nil {
		return err
	}
	for _, r := range lost {
		if err := c.dst.SetBad(r.Off, r.Len); err != nil {
			return err
		}
	}
	return nil
}

// moveData copies data. What cannot be read is lost in the copy as well, if checksums can say so.
func (c *Copy) moveData(off, length int64, w way) (lost []Range, err error) {
	if w != byReading && c.src.shares() {
		// One request for all of the range, whatever holes there are in it: each takes the locks of
		// both files, and has what is dirty written out.
		done, err := c.share(off, length, w)
		if done || err != nil {
			return nil, err
		}
	}
	buf := copyBuffers.Get().(*[copyPiece]byte)
	defer copyBuffers.Put(buf)
	for end := off + length; off < end; {
		p := buf[:min(copyPiece, end-off)]
		// A first write does not look for a hole: what it writes is cached soon, whatever is there.
		hole := false
		if w != byReading {
			if hole, err = c.src.isHole(off, int64(len(p))); err != nil {
				return nil, err
			}
		}
		if !hole {
			if lost, err = c.movePiece(p, off, lost); err != nil {
				return nil, err
			}
		}
		off += int64(len(p))
	}
	return lost, nil
}

// movePiece copies one by reading and writing it. What cannot be read is zero in the copy, and
// added to what is lost.
func (c *Copy) movePiece(p []byte, off int64, lost []Range) ([]Range, error) {
	err := c.src.eachReadable(p, off, func(p []byte, at int64, readable bool) error {
		switch {
		case readable:
			return nil
		case c.dst.obj == nil:
			return fmt.Errorf("copy of %s at %d+%d: %w", c.src.path, at, len(p), ErrMedia)
		}
		clear(p)
		lost = addRange(lost, at, int64(len(p)))
		return nil
	})
	if err != nil {
		return lost, err
	}
	return lost, c.dst.writeNonzero(p, off)
}

// isHole says whether a range has no data, as far as the filesystem knows. Unlike extents it does
// not look for the end of the data, which may be far.
func (f *image) isHole(off, length int64) (bool, error) {
	next := off
	err := f.control(func(fd int) (err error) {
		next, err = unix.Seek(fd, off, unix.SEEK_DATA)
		return err
	})
	switch {
	case errors.Is(err, unix.ENXIO): // no data from off to the end
		return true, nil
	case err != nil:
		return false, classify("extents", f.path, err)
	}
	return next >= off+length, nil
}

// writeNonzero writes whole blocks into a part of a file that has nothing yet. Zeroes at both ends
// stay holes. Those in between do if they are more than half of the blocks; otherwise all is one
// write, and one extent: space for fewer extents.
func (f *File) writeNonzero(p []byte, off int64) error {
	var runs []Range // of blocks that are not zero, in p
	var n int64
	for at := 0; at < len(p); {
		length := run(p[at:], sumBlock)
		if !AllZero(p[at : at+length]) {
			runs = append(runs, Range{int64(at), int64(length)})
			n += int64(length)
		}
		at += length
	}
	if len(runs) == 0 {
		return nil
	}
	last := runs[len(runs)-1]
	if span := last.Off + last.Len - runs[0].Off; 2*n >= span {
		runs = []Range{{runs[0].Off, span}}
	}
	for _, r := range runs {
		if err := f.writeRaw(p[r.Off:r.Off+r.Len], off+r.Off); err != nil {
			return err
		}
	}
	return nil
}

// shares says whether any of the images in which the LUN lies can share extents. The home of a LUN
// that is spread may have none of its data.
func (f *File) shares() bool {
	if f.places == nil {
		return f.reflink
	}
	return f.places.lost == nil && slices.ContainsFunc(f.places.order, func(x *image) bool { return x.reflink })
}

// share has the copy share the source's extents; done is false where the filesystem cannot.
func (c *Copy) share(off, length int64, w way) (done bool, err error) {
	if hole, err := c.src.isHole(off, length); hole || err != nil {
		return hole, err
	}
	if w == inBackground {
		begun := time.Now()
		defer func() { c.locked += time.Since(begun) }()
	}
	if err = c.src.s.fault(FaultClone, c.dst.path, off, length); err == nil {
		err = c.src.each(off, length, func(from *image, off, n int64) error {
			if err := c.dst.follow(off, from.number); err != nil {
				return err
			}
			return c.dst.eachChange(off, n, func(to *image, off, n int64) error { return from.share(to, off, n) })
		})
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ETXTBSY):
		return false, nil
	}
	return false, classify("copy", c.dst.path, err)
}

// share has another image share the extents of a range, at its own offset.
func (f *image) share(with *image, off, length int64) error {
	return f.control(func(from int) error {
		return with.control(func(to int) error {
			return unix.IoctlFileCloneRange(to, &unix.FileCloneRange{Src_fd: int64(from), Src_offset: uint64(off), Src_length: uint64(length), Dest_offset: uint64(off)})
		})
	})
}

const (
	// cleanTries bounds how often what is dirty is written out before a range is shared.
	cleanTries = 4
	// cleanTime is how long that takes at most where hardly anything was dirty.
	cleanTime = time.Millisecond
)

// clean writes out what is dirty of pieces of the source: otherwise the filesystem does it while
// the source is locked, behind all that the disk has to write. What has become dirty meanwhile is
// written out again. No write waits for it, so the pieces must not be marked as being copied yet.
func (c *Copy) clean(region int, run uint64) error {
	off, length := c.span(region, run)
	for range cleanTries {
		begun := time.Now()
		if _, err := c.src.writeOut(off, length); err != nil {
			return err
		}
		if time.Since(begun) < cleanTime {
			break
		}
	}
	return nil
}

// moveSums copies checksums as they are: what is rotten in the source is so in the copy, and does
// not match there either.
func (c *Copy) moveSums(off, length int64) error {
	from, to := c.src.obj, c.dst.obj
	if from == nil || to == nil {
		return nil
	}
	first, n := off/sumBlock, sums.Blocks(length)
	var list [getSums]sums.Sum
	for n > 0 {
		k := min(n, getSums)
		if err := from.sums.Get(first, list[:k]); err != nil {
			return c.src.sumsError("copy", err)
		}
		for i, x := range list[:k] {
			if x == sums.Unknown && first+int64(i) >= from.sums.Adopted() {
				list[i] = 0 // settled just now: nothing was put, so the block is zero
			}
		}
		if slices.ContainsFunc(list[:k], func(x sums.Sum) bool { return x != 0 }) { // else they are as the copy was made
			err := to.sums.Reserve(first, k)
			if err == nil {
				err = to.sums.Set(first, list[:k])
			}
			if err != nil {
				return c.dst.sumsError("copy", err)
			}
		}
		first, n = first+k, n-k
	}
	return nil
}

// settleRange reads what is in doubt, or has no checksum yet, of which no write may be under way: a
// copy has no write-intent bits that would say so of it after a crash.
func (f *File) settleRange(off, length int64) error {
	if f.obj == nil || !f.DoubtedIn(off, length) && f.obj.sums.Adopted() == sums.AllAdopted {
		return nil
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	buf := copyBuffers.Get().(*[copyPiece]byte)
	defer copyBuffers.Put(buf)
	end := min((off+length+sumBlock-1)&^(sumBlock-1), size)
	for at := off &^ (sumBlock - 1); at < end; {
		p := buf[:min(copyPiece, end-at)]
		err := f.eachReadable(p, at, func(p []byte, at int64, readable bool) error {
			if !readable {
				return f.SetBad(at, int64(len(p)))
			}
			_, err := f.check(p, at)
			return err
		})
		if err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}
