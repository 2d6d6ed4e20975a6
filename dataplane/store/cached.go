package store

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// probing says how ReadCached finds out whether a read would wait for the disk. It is a property of
// the filesystem, so it is looked at once, when the file is opened.
type probing uint8

const (
	probeNever  probing = iota // the filesystem cannot tell: any read may wait
	probeNowait                // preadv2 with RWF_NOWAIT tells
	probeMemory                // a filesystem in memory, which cannot tell but has nothing to wait for
)

// attempt is one preadv2 or pwritev2 with RWF_NOWAIT. RawConn.Control keeps the descriptor from
// being closed and used for another file meanwhile; the function that it calls is bound once, so
// that what waits for nothing allocates nothing.
type attempt struct {
	p    []byte
	iov  [1][]byte
	off  int64
	n    int
	err  error
	call func(fd uintptr)
}

func attempts(io func(fd int, iovs [][]byte, off int64, flags int) (int, error)) *sync.Pool {
	return &sync.Pool{New: func() any {
		q := new(attempt)
		q.call = func(fd uintptr) {
			q.iov[0] = q.p
			q.n, q.err = io(int(fd), q.iov[:], q.off, unix.RWF_NOWAIT)
		}
		return q
	}}
}

var reading, writing = attempts(unix.Preadv2), attempts(unix.Pwritev2)

// attempt makes one of a pool: n bytes of p, from its beginning, needed no wait.
func (f *image) attempt(pool *sync.Pool, p []byte, off int64) (n int, err error) {
	q := pool.Get().(*attempt)
	q.p, q.off, q.n, q.err = p, off, 0, nil
	if err = fd.Raw(f.raw, q.call); err == nil {
		n, err = q.n, q.err
	}
	q.p, q.iov[0] = nil, nil
	pool.Put(q)
	return n, err
}

// nowait reads what the page cache has of p, from its beginning.
func (f *image) nowait(p []byte, off int64) (n int, err error) { return f.attempt(reading, p, off) }

// ReadCached fills p from off if the page cache has all of it. False means that ReadAt has to be
// asked, which may wait for the disk, and says why if the read cannot succeed; p is undefined then.
// The disk is not waited for, but a read that misses begins: the kernel reads ahead, and a ReadAt
// that follows finds its request under way.
//
// With checksums it is also false if they are not in memory, or say that something is wrong: ReadAt
// has to find out.
func (f *File) ReadCached(p []byte, off int64) bool {
	if f.obj == nil {
		return f.cachedRaw(p, off)
	}
	return f.cachedChecked(p, off)
}

func (f *File) cachedRaw(p []byte, off int64) bool {
	if f.in.Load() != nil {
		return false // it may have to be copied first
	}
	return f.cachedPlaces(p, off)
}

// cachedRead is ReadCached of what is in the image.
func (f *image) cachedRead(p []byte, off int64) bool {
	if f.s.faults != nil { // a fault may be a wait
		if f.s.cached == nil || !f.s.cached(f.path, off, int64(len(p))) {
			return false
		}
		n, err := f.f.ReadAt(p, off)
		return err == nil && n == len(p)
	}
	switch f.probing {
	case probeNowait:
		n, err := f.nowait(p, off)
		return err == nil && n == len(p)
	case probeMemory:
		n, err := f.read(p, off)
		return err == nil && n == len(p)
	}
	return false
}

// lookAt decides how ReadCached works for this file.
func (f *image) lookAt() error {
	var b [1]byte
	_, err := f.nowait(b[:], 0)
	if err == nil || errors.Is(err, unix.EAGAIN) {
		f.probing = probeNowait
		return nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return nil // ReadAt will say what is wrong
	}
	var fs unix.Statfs_t
	if err := f.control(func(fd int) error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return classify("statfs", f.path, err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		f.probing = probeMemory
	}
	return nil
}
