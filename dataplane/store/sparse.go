package store

import "bytes"

const (
	sparseBlock  = 4096    // the unit of holes that WriteSparse makes, in bytes
	patternChunk = 1 << 20 // how much WritePattern writes at once, in bytes
)

// WriteSparse writes p at off; its blocks of 4 KiB that are all zero, counted from the start of p,
// become holes: what was a hole at the source of a copy is one here, and a repair after ErrNoSpace
// needs no space for them. Errors are those of WriteAt and Discard.
func (f *File) WriteSparse(p []byte, off int64) error {
	for len(p) > 0 {
		i := run(p, sparseBlock)
		var err error
		if AllZero(p[:min(sparseBlock, len(p))]) {
			err = f.Discard(off, int64(i))
		} else {
			err = f.WriteAt(p[:i], off)
		}
		if err != nil {
			return err
		}
		p, off = p[i:], off+int64(i)
	}
	return nil
}

// WritePattern fills length bytes at off with repetitions of block, which must not be empty (WRITE
// SAME, SBC-3 §5.50). Errors are those of WriteAt.
func (f *File) WritePattern(block []byte, off, length int64) error {
	buf := bytes.Repeat(block, max(1, int(min(patternChunk, length))/len(block)))
	for length > 0 {
		p := buf[:min(int64(len(buf)), length)]
		if err := f.WriteAt(p, off); err != nil {
			return err
		}
		off += int64(len(p))
		length -= int64(len(p))
	}
	return nil
}

// run is the length of the leading run of blocks that are all zero or all not.
func run(p []byte, block int) int {
	zero := AllZero(p[:min(block, len(p))])
	i := min(block, len(p))
	for i < len(p) && AllZero(p[i:min(i+block, len(p))]) == zero {
		i = min(i+block, len(p))
	}
	return i
}

// AllZero reports whether every byte is zero.
func AllZero(p []byte) bool {
	for len(p) >= 64 {
		if [64]byte(p[:64]) != ([64]byte{}) {
			return false
		}
		p = p[64:]
	}
	for _, x := range p {
		if x != 0 {
			return false
		}
	}
	return true
}
