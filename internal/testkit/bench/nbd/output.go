package nbd

import (
	"fmt"
	"net"
	"sync"
	"syscall"
	"unsafe"
)

// output sends requests. The goroutine that submits one writes it as far as the socket takes it;
// the rest, and what comes meanwhile, is the goroutine's. So the reader, which calls Done, never
// waits for the server to read.
type output struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // once; made here so that sending allocates nothing
	all func(fd uintptr) bool // until everything is written

	mu      sync.Mutex
	iov     [2]syscall.Iovec // what is being written; the owner is the goroutine while busy
	errno   syscall.Errno
	busy    bool
	stopped bool
	queue   []queued // for the goroutine
	spare   []queued // its memory, used in turns
	wake    chan struct{}
	ended   chan struct{}
}

type queued struct {
	slot    *slot
	payload []byte
}

func newOutput(conn net.Conn) (*output, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is not a socket", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	o := &output{raw: raw, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	o.try = func(fd uintptr) bool { o.write(fd); return true }
	o.all = func(fd uintptr) bool { return o.write(fd) }
	return o, nil
}

// send writes a request now or leaves it to the goroutine. What fails is found out by the reader,
// which sees the connection end.
func (o *output) send(s *slot, payload []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		return
	}
	if o.busy {
		o.queue = append(o.queue, queued{s, payload})
		return
	}
	o.load(s, payload)
	if err := o.raw.Write(o.try); err == nil && o.errno == 0 && o.left() {
		o.busy = true
		o.wake <- struct{}{} // has room: the goroutine is asleep
	}
}

func (o *output) load(s *slot, payload []byte) {
	o.errno = 0
	o.iov[0] = syscall.Iovec{Base: &s.head[0], Len: uint64(len(s.head))}
	o.iov[1] = syscall.Iovec{}
	if len(payload) > 0 {
		o.iov[1] = syscall.Iovec{Base: &payload[0], Len: uint64(len(payload))}
	}
}

func (o *output) left() bool { return o.iov[0].Len+o.iov[1].Len > 0 }

// write writes until nothing is left, which it reports, as it does an error, or the socket is full.
func (o *output) write(fd uintptr) (done bool) {
	for o.left() {
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&o.iov[0])), 2)
		switch errno {
		case 0:
			o.advance(uint64(n))
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			o.errno = errno
			return true
		}
	}
	return true
}

func (o *output) advance(n uint64) {
	for i := range o.iov {
		v := &o.iov[i]
		m := min(n, v.Len)
		if v.Len -= m; v.Len > 0 {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), m))
		} else {
			v.Base = nil
		}
		n -= m
	}
}

// run is the goroutine. An error ends it: the socket is of no use then.
func (o *output) run() {
	defer close(o.ended)
	for range o.wake {
		err := o.raw.Write(o.all) // the rest of what send had begun
		for err == nil && o.errno == 0 {
			o.mu.Lock()
			if len(o.queue) == 0 {
				o.busy = false
				o.mu.Unlock()
				break
			}
			batch := o.queue
			o.queue, o.spare = o.spare[:0], batch
			o.mu.Unlock()
			for i := 0; i < len(batch) && err == nil && o.errno == 0; i++ {
				o.load(batch[i].slot, batch[i].payload)
				err = o.raw.Write(o.all)
			}
			clear(batch)
		}
	}
}

// stop waits until no buffer is used any more. The connection is closed already.
func (o *output) stop() {
	o.mu.Lock()
	o.stopped = true
	o.mu.Unlock()
	close(o.wake)
	<-o.ended
}
