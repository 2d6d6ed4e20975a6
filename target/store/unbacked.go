package store

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FIEMAP, from linux/fiemap.h, which x/sys does not have.
const (
	fsIocFiemap = 0xc020660b

	fiemapLast    = 0x1
	fiemapEncoded = 0x8 // compressed or encrypted: written anew elsewhere
	fiemapShared  = 0x2000
)

type fiemapExtent struct {
	Logical, Physical, Length uint64
	_                         [2]uint64
	Flags                     uint32
	_                         [3]uint32
}

type fiemap struct {
	Start, Length           uint64
	Flags, Mapped, Count, _ uint32
	Extents                 [64]fiemapExtent
}

// Unbacked is how many bytes of new space a write of all of [off, off+length) would take: whole filesystem blocks that
// are holes, or that share their extent with a snapshot or clone and would be copied on write. What was allocated but
// not written, or written and not yet placed, has its space already. It is what a reservation needs (R13); metadata
// of the filesystem comes on top. The answer is as of now: the caller keeps snapshots and discards of the range away
// until it has reserved. Beyond the end is ErrRange.
//
// On a filesystem without FIEMAP holes alone are counted, by SEEK_HOLE; none such shares extents.
func (f *File) Unbacked(off, length int64) (int64, error) {
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	if off < 0 || length < 0 || off > size-length {
		return 0, fmt.Errorf("unbacked part of %s at %d+%d: %w", f.path, off, length, ErrRange)
	}
	if length == 0 {
		return 0, nil
	}
	block, err := f.blockSize()
	if err != nil {
		return 0, err
	}
	from, to := off/block*block, (off+length+block-1)/block*block
	backed, err := f.mapped(from, to)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		return f.holes(from, min(to, size), block)
	}
	if err != nil {
		return 0, classify("extents", f.path, err)
	}
	return to - from - backed, nil
}

func (f *File) blockSize() (int64, error) {
	var st unix.Statfs_t
	if err := f.control(func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return 0, classify("stat", f.path, err)
	}
	return max(st.Bsize, 512), nil
}

// mapped is how many bytes of [from, to) can be written in place.
func (f *File) mapped(from, to int64) (backed int64, err error) {
	m := new(fiemap)
	for from < to {
		*m = fiemap{Start: uint64(from), Length: uint64(to - from), Count: uint32(len(m.Extents))}
		err := f.control(func(fd int) error {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFiemap, uintptr(unsafe.Pointer(m)))
			runtime.KeepAlive(m)
			if errno != 0 {
				return errno
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		n := min(int(m.Mapped), len(m.Extents))
		for _, e := range m.Extents[:n] {
			lo, hi := max(int64(e.Logical), from), min(int64(e.Logical+e.Length), to)
			if hi <= lo {
				continue
			}
			if e.Flags&(fiemapShared|fiemapEncoded) == 0 {
				backed += hi - lo
			}
			from = hi
		}
		if n == 0 || m.Extents[n-1].Flags&fiemapLast != 0 || n < len(m.Extents) {
			return backed, nil
		}
	}
	return backed, nil
}

// holes is how many bytes of [from, to) are holes, in whole blocks.
func (f *File) holes(from, to, block int64) (n int64, err error) {
	for from < to {
		run, data, err := f.Extents(from, to-from)
		if err != nil {
			return 0, err
		}
		if !data {
			n += (run + block - 1) / block * block
		}
		from += run
	}
	return n, nil
}
