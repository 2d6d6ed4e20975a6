package initiator

import (
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketReader reads into one or two buffers with readv: the tail of a data segment straight into
// the caller's buffer, what follows into the session's.
type socketReader struct {
	raw   syscall.RawConn
	iov   [2]unix.Iovec
	n     int
	errno syscall.Errno
	step  func(fd uintptr) bool
	count int
}

func newSocketReader(raw syscall.RawConn) *socketReader {
	r := &socketReader{raw: raw}
	r.step = func(fd uintptr) bool {
		for {
			n, _, errno := syscall.Syscall(syscall.SYS_READV, fd, uintptr(unsafe.Pointer(&r.iov[0])), uintptr(r.count))
			switch errno {
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false
			}
			r.n, r.errno = int(n), errno
			return true
		}
	}
	return r
}

// read waits for bytes and returns how many arrived, first in a, then in b. One of them may be
// empty.
func (r *socketReader) read(a, b []byte) (int, error) {
	r.count = 0
	for _, p := range [2][]byte{a, b} {
		if len(p) > 0 {
			r.iov[r.count].Base = &p[0]
			r.iov[r.count].SetLen(len(p))
			r.count++
		}
	}
	err := r.raw.Read(r.step)
	r.iov = [2]unix.Iovec{}
	switch {
	case err != nil:
		return 0, err
	case r.errno != 0:
		return 0, r.errno
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}
