package store

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/gemel-storage/gemel/dataplane/sums"
)

// sumBlock is how many bytes a checksum is of.
const sumBlock = sums.BlockSize

// Range is Len bytes from Off on.
type Range struct{ Off, Len int64 }

// ChecksumError lists the blocks of an object that do not match their checksums. It is an
// ErrChecksum.
type ChecksumError struct {
	Path   string  // relative to the store's directory
	Blocks []Range // whole blocks, the last one of the object may be shorter; in order, merged
}

func (e *ChecksumError) Error() string {
	var n int64
	for _, r := range e.Blocks {
		n += r.Len
	}
	if len(e.Blocks) == 0 {
		return fmt.Sprintf("%s: %v", e.Path, ErrChecksum)
	}
	return fmt.Sprintf("%s: %v: %d bytes, the first at %d", e.Path, ErrChecksum, n, e.Blocks[0].Off)
}

func (e *ChecksumError) Unwrap() error { return ErrChecksum }

// Mismatched are the blocks that a ChecksumError names, nil for another error.
func Mismatched(err error) []Range {
	var e *ChecksumError
	if errors.As(err, &e) {
		return e.Blocks
	}
	return nil
}

// addRange puts a range at the end of a list.
func addRange(list []Range, off, length int64) []Range {
	if n := len(list); n > 0 && list[n-1].Off+list[n-1].Len == off {
		list[n-1].Len += length
		return list
	}
	return append(list, Range{off, length})
}

func checksumError(path string, bad []Range) error {
	if len(bad) == 0 {
		return nil
	}
	return &ChecksumError{path, bad}
}

// buffers are of one block, for what is not read or written as a whole.
var buffers = sync.Pool{New: func() any { return new([sumBlock]byte) }}

// whole says whether a range is one of whole blocks, of which the last one of the object may be
// shorter.
func (f *File) whole(off, length int64) (bool, error) {
	n, err := f.wholePart(off, length)
	return err == nil && n == length, err
}

// wholePart is how much of a range is whole blocks from off on, 0 if it begins within one.
func (f *File) wholePart(off, length int64) (int64, error) {
	if off%sumBlock != 0 || off < 0 {
		return 0, nil
	}
	n := length &^ (sumBlock - 1)
	if n == length {
		return n, nil
	}
	size, err := f.Size()
	if err == nil && off+length == size {
		n = length
	}
	return n, err
}

// blockAt is where the block of a byte begins, and how long it is.
func (f *File) blockAt(off int64) (at, length int64, err error) {
	size, err := f.Size()
	if err != nil {
		return 0, 0, err
	}
	if off < 0 || off >= size {
		return 0, 0, fmt.Errorf("%s at %d of %d: %w", f.path, off, size, ErrRange)
	}
	at = off &^ (sumBlock - 1)
	return at, min(sumBlock, size-at), nil
}

// readChecked is ReadAt with checksums.
func (f *File) readChecked(p []byte, off int64) error {
	var bad []Range
	for len(p) > 0 {
		n, wrong, err := f.readPart(p, off)
		if err != nil {
			return err
		}
		for _, r := range wrong {
			bad = addRange(bad, r.Off, r.Len)
		}
		p, off = p[n:], off+n
	}
	return checksumError(f.path, bad)
}

// readPart reads what of p can be read at once: whole blocks, or what p begins with of one.
func (f *File) readPart(p []byte, off int64) (n int64, bad []Range, err error) {
	if n, err = f.wholePart(off, int64(len(p))); err != nil {
		return 0, nil, err
	}
	if n > 0 {
		f.obj.sums.Expect(off / sumBlock)
		if err := f.readRaw(p[:n], off); err != nil {
			return 0, nil, err
		}
		bad, err = f.check(p[:n], off)
		return n, bad, err
	}
	at, length, err := f.blockAt(off)
	if err != nil {
		return 0, nil, fmt.Errorf("read %w", err)
	}
	buf := buffers.Get().(*[sumBlock]byte)
	defer buffers.Put(buf)
	if err := f.readRaw(buf[:length], at); err != nil {
		return 0, nil, err
	}
	bad, err = f.check(buf[:length], at)
	return int64(copy(p, buf[off-at:length])), bad, err
}

// cachedChecked is ReadCached with checksums.
func (f *File) cachedChecked(p []byte, off int64) bool {
	if off%sumBlock == 0 && len(p)%sumBlock == 0 { // as nearly all reads are
		return f.cachedBlocks(p, off)
	}
	for len(p) > 0 {
		n := f.cachedPart(p, off)
		if n == 0 {
			return false
		}
		p, off = p[n:], off+n
	}
	return true
}

func (f *File) cachedPart(p []byte, off int64) int64 {
	n, err := f.wholePart(off, int64(len(p)))
	if err != nil {
		return 0
	}
	if n > 0 {
		if f.cachedBlocks(p[:n], off) {
			return n
		}
		return 0
	}
	at, length, err := f.blockAt(off)
	if err != nil {
		return 0
	}
	buf := buffers.Get().(*[sumBlock]byte)
	defer buffers.Put(buf)
	if !f.cachedBlocks(buf[:length], at) {
		return 0
	}
	return int64(copy(p, buf[off-at:length]))
}

// cachedBlocks is cachedChecked for whole blocks.
func (f *File) cachedBlocks(p []byte, off int64) bool {
	s, first := f.obj.sums, off/sumBlock
	at := s.Expect(first)
	if !f.cachedRaw(p, off) {
		return false
	}
	if s.Matches(at, first, p) {
		return true
	}
	ok, _ := s.CheckCached(first, p)
	return ok
}

// check compares whole blocks that were read with their checksums. Where these are not believed or
// not known yet, the content is taken as it is. It returns what is bad.
func (f *File) check(data []byte, off int64) (bad []Range, err error) {
	o := f.obj
	faults, err := o.sums.Check(off/sumBlock, data)
	if err != nil {
		return nil, f.sumsError("read", err)
	}
	if len(faults) == 0 && o.doubt.blocks() == 0 {
		return nil, nil
	}
	for _, x := range faults {
		at := x.Block*sumBlock - off
		block := data[at:min(at+sumBlock, int64(len(data)))]
		switch {
		case !o.accepts(x):
			bad = addRange(bad, off+at, int64(len(block)))
		case x.Want == sums.Unknown && sums.Of(block) == 0: // zero is the checksum of zeroes, once the block is adopted
		default:
			if err := o.sums.Put(x.Block, block); err != nil {
				return nil, f.sumsError("read", err)
			}
			f.s.sums.settled.Add(1)
		}
	}
	o.doubt.clear(off/sumBlock, sums.Blocks(int64(len(data))))
	for _, r := range bad {
		f.s.sums.mismatched.Add(uint64(sums.Blocks(r.Len)))
	}
	return bad, nil
}

// accepts says that a block that does not check is taken as it is.
func (o *object) accepts(x sums.Fault) bool {
	return x.Want == sums.Unknown && x.Block >= o.sums.Adopted() || o.doubt.any(x.Block, 1)
}

// ReadMarked is ReadAt for copies: blocks that do not match their checksums are zeroes in p and
// are listed, and all others have the content that was written. It reads whole blocks only, of
// which the last one of the object may be shorter; otherwise ErrRange. What the disk cannot read
// is an error.
func (f *File) ReadMarked(p []byte, off int64) (bad []Range, err error) {
	if err := f.wholeOnly("read", off, int64(len(p))); err != nil {
		return nil, err
	}
	if err := f.readRaw(p, off); err != nil || f.obj == nil {
		return nil, err
	}
	if bad, err = f.check(p, off); err != nil {
		return nil, err
	}
	for _, r := range bad {
		clear(p[r.Off-off:][:r.Len])
	}
	return bad, nil
}

func (f *File) wholeOnly(op string, off, length int64) error {
	ok, err := f.whole(off, length)
	if err == nil && !ok {
		err = fmt.Errorf("%s %s at %d+%d: %w: not whole blocks of %d", op, f.path, off, length, ErrRange, sumBlock)
	}
	return err
}

// getSums is how many checksums are looked at at once.
const getSums = 1024

// Hole reports whether a range is a hole that is meant to be one. If the checksums say that the
// range has content, its blocks are lost, and a read reports them; then Hole is false. It is
// also false for a range that is not of whole blocks.
func (f *File) Hole(off, length int64) (bool, error) {
	run, data, err := f.Extents(off, length)
	if err != nil || data || run < length || f.obj == nil {
		return err == nil && !data && run >= length, err
	}
	if ok, err := f.whole(off, length); !ok {
		return false, err
	}
	o := f.obj
	var list [getSums]sums.Sum
	for first, n := off/sumBlock, sums.Blocks(length); n > 0; {
		k := min(n, getSums)
		if err := o.sums.Get(first, list[:k]); err != nil {
			return false, f.sumsError("read", err)
		}
		for i, x := range list[:k] {
			block := first + int64(i)
			switch {
			case x == 0, x == sums.Unknown && block >= o.sums.Adopted():
			case !o.doubt.any(block, 1):
				return false, nil
			default:
				if err := o.sums.Zero(block, 1); err != nil {
					return false, f.sumsError("read", err)
				}
				f.s.sums.settled.Add(1)
			}
		}
		o.doubt.clear(first, k)
		first, n = first+k, n-k
	}
	return true, nil
}

// eachReadable reads whole blocks and calls fn for them, block by block if the disk cannot read
// them all.
func (f *File) eachReadable(p []byte, off int64, fn func(p []byte, off int64, readable bool) error) error {
	err := f.readRaw(p, off)
	if err == nil {
		return fn(p, off, true)
	}
	if !errors.Is(err, ErrMedia) {
		return err
	}
	for len(p) > 0 {
		n := min(sumBlock, len(p))
		err := f.readRaw(p[:n], off)
		if err != nil && !errors.Is(err, ErrMedia) {
			return err
		}
		if err := fn(p[:n], off, err == nil); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Checkpoint makes all that was written before the call durable, data and checksums: what has to be
// before write-intent bits are cleared. ErrNoSpace if there is none for the checksums, which stay
// in memory: the bits stay set, and the next one tries again. Any other failure is final (R12).
func (f *File) Checkpoint() error {
	if err := f.Sync(); err != nil || f.obj == nil {
		return err
	}
	return f.sumsError("flush", f.obj.sums.Flush())
}

// allBlocks is more than any object has.
const allBlocks = math.MaxInt64
