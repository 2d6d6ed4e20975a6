package link

import (
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wire is the socket under a connection, between the kernel and TLS where there is TLS. It gives
// TLS what a socket does not: many records in one system call, and a Write that never waits, so
// that the goroutine that sends encrypts, and hands over to no other one for it.
type wire struct {
	net.Conn
	raw syscall.RawConn // nil: the connection is no kernel socket, and every write may wait

	// idle is called by the reader before it asks the socket for more. Set before the reader
	// begins.
	idle func()

	// Of the reader, with TLS: what the socket had beyond what was asked for.
	in   []byte
	r, w int

	// With TLS, once live: records that the socket has not taken.
	mu       sync.Mutex
	live     bool
	corked   bool // the sender flushes when it has encrypted all it has
	draining bool // a goroutine waits for the socket, and writes what is there in its order
	out      []byte
	sent     int // bytes of out that the socket has
	err      error
	flushFn  func(fd uintptr) bool
}

// wireInput is how much is read at once under TLS: several records, each of which TLS would ask the
// kernel for by itself.
const wireInput = 128 << 10

func newWire(c net.Conn, sealed bool) *wire {
	w := &wire{Conn: c}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			w.raw = raw
		}
	}
	if sealed {
		w.in = make([]byte, wireInput)
		w.flushFn = w.tryFlush
	}
	return w
}

// Read implements io.Reader.
func (w *wire) Read(p []byte) (int, error) {
	if w.r < w.w {
		n := copy(p, w.in[w.r:w.w])
		w.r += n
		return n, nil
	}
	if w.idle != nil {
		w.idle()
	}
	if len(p) >= len(w.in) {
		return w.Conn.Read(p)
	}
	n, err := w.Conn.Read(w.in)
	w.r, w.w = copy(p, w.in[:n]), n
	return w.r, err
}

// Write implements io.Writer. Before goLive it is the socket's; afterwards it takes all of p and
// returns at once.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	if !w.live {
		w.mu.Unlock()
		return w.Conn.Write(p)
	}
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.out = append(w.out, p...)
	if !w.corked {
		w.flushLocked()
	}
	return len(p), w.err
}

// goLive ends the handshake, whose writes wait.
func (w *wire) goLive() {
	w.mu.Lock()
	w.live = true
	w.mu.Unlock()
}

// cork has Write collect until flush or drain.
func (w *wire) cork() {
	w.mu.Lock()
	w.corked = true
	w.mu.Unlock()
}

// pending is how many bytes the socket has not taken.
func (w *wire) pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out) - w.sent
}

// flush ends cork and gives the socket what it takes without waiting. It returns true when nothing
// is left.
func (w *wire) flush() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.corked = false
	return w.flushLocked()
}

func (w *wire) flushLocked() bool {
	if w.draining || w.raw == nil {
		return false
	}
	if len(w.out) > 0 && w.err == nil {
		if err := w.raw.Write(w.flushFn); err != nil && w.err == nil {
			w.err = err
		}
	}
	if w.err != nil {
		w.out, w.sent = nil, 0 // the reader learns what is wrong with the socket
	}
	return len(w.out) == 0
}

// tryFlush is one use of the descriptor. mu is held.
func (w *wire) tryFlush(fd uintptr) bool {
	for w.sent < len(w.out) {
		b := w.out[w.sent:]
		n, _, e := unix.Syscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch {
		case e == unix.EINTR:
		case e == unix.EAGAIN:
			return true
		case e != 0:
			w.err = e
			return true
		default:
			w.sent += int(n)
		}
	}
	w.reset(&w.out)
	return true
}

// wireKeep is the most memory for records that an idle connection keeps.
const wireKeep = 512 << 10

func (w *wire) reset(b *[]byte) {
	w.sent = 0
	if *b = (*b)[:0]; cap(*b) > wireKeep {
		*b = nil
	}
}

// drain writes all that is left, and waits for the socket, each write for up to limit.
func (w *wire) drain(limit time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.corked = false
	w.draining = true
	var spare []byte
	defer func() {
		w.draining = false
		if w.out == nil {
			w.out = spare
		}
	}()
	for len(w.out) > 0 && w.err == nil {
		b := w.out[w.sent:]
		whole := w.out
		w.out, w.sent, spare = spare, 0, nil
		w.mu.Unlock()
		err := w.Conn.SetWriteDeadline(time.Now().Add(limit))
		if err == nil {
			_, err = w.Conn.Write(b)
		}
		_ = w.Conn.SetWriteDeadline(time.Time{}) // or a later write would meet it
		w.mu.Lock()
		w.err = err
		w.reset(&whole)
		spare = whole
	}
	return w.err
}
