package iscsi

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket does scatter-gather I/O on a connection without allocating. Reads are for one goroutine at
// a time, writes too.
type socket struct {
	nc  net.Conn
	raw syscall.RawConn

	// Arguments and results of the callbacks, which are made once: a closure per call would
	// allocate.
	readFn, writeFn func(fd uintptr) bool
	rv              [2]unix.Iovec
	rvN             int
	rn              int
	rerr            error
	wv              []unix.Iovec
	wwait           bool // wait when the socket is full
	wn              int
	werr            error

	// onRead hears of n bytes that came, or with 0 that the reader is about to wait, while mu is
	// held, as it is during the read itself. What it returns is called outside the read: closing a
	// socket waits for those inside.
	onRead func(n int) []drain
	due    []drain
	mu     sync.Mutex
}

func newSocket(nc net.Conn) (*socket, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is not a kernel socket", nc)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	if t, ok := nc.(*net.TCPConn); ok {
		if err := errors.Join(t.SetNoDelay(true), t.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3})); err != nil {
			return nil, err
		}
	}
	s := &socket{nc: nc, raw: raw}
	s.readFn, s.writeFn = s.tryRead, s.tryWrite
	return s, nil
}

var errEOF = errors.New("connection closed by the initiator")

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

// iovecBytes is the inverse of iovec.
func iovecBytes(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, int(v.Len)) }

// read waits for data and fills first, then second (either may be empty), with one system call.
func (s *socket) read(first, second []byte) (int, error) {
	s.rvN = 0
	for _, b := range [2][]byte{first, second} {
		if len(b) > 0 {
			s.rv[s.rvN] = iovec(b)
			s.rvN++
		}
	}
	for {
		s.rn, s.rerr = 0, nil
		err := s.raw.Read(s.readFn)
		for _, d := range s.due {
			d.done()
		}
		s.due = nil
		if s.rn == 0 && s.rerr == nil && err == nil {
			continue // it came out only for what was due
		}
		s.rv = [2]unix.Iovec{} // do not keep the buffers alive
		if s.rerr != nil {
			return 0, s.rerr
		}
		return s.rn, err
	}
}

func (s *socket) tryRead(fd uintptr) bool {
	s.mu.Lock()
	n, _, e := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&s.rv[0])), uintptr(s.rvN))
	for e == unix.EINTR {
		n, _, e = unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&s.rv[0])), uintptr(s.rvN))
	}
	switch {
	case e == unix.EAGAIN:
		s.due = s.onRead(0)
	case e != 0:
		s.rerr = e
	case n == 0:
		s.rerr = errEOF
	default:
		s.rn = int(n)
		s.due = s.onRead(s.rn)
	}
	s.mu.Unlock()
	return e != unix.EAGAIN || len(s.due) > 0
}

// errFull says that the socket takes no more and wait was false.
var errFull = errors.New("socket buffer full")

// write sends from v with one system call and returns how many bytes went. With wait it waits, up
// to the write deadline, until the socket takes something.
func (s *socket) write(v []unix.Iovec, wait bool) (int, error) {
	s.wv, s.wwait, s.wn, s.werr = v, wait, 0, nil
	err := s.raw.Write(s.writeFn)
	s.wv = nil
	if s.werr != nil {
		return 0, s.werr
	}
	if err != nil {
		return 0, err
	}
	return s.wn, nil
}

func (s *socket) tryWrite(fd uintptr) bool {
	for {
		n, _, e := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&s.wv[0])), uintptr(len(s.wv)))
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			if s.wwait {
				return false
			}
			s.werr = errFull
		case e != 0:
			s.werr = e
		default:
			s.wn = int(n)
		}
		return true
	}
}

// readable is the number of bytes that wait in the kernel for the next read.
func (s *socket) readable() (n int, err error) {
	cerr := s.raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if cerr != nil {
		return 0, cerr
	}
	return n, err
}
