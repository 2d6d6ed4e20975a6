package link

import (
	"bufio"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// writeTimeout bounds one batch: a peer that takes nothing for this long is as good as gone.
const writeTimeout = 10 * time.Second

// conn is one of the two connections of a link. Sending has two steps: send queues and may be
// called under any lock; kick, called with none held, writes what is queued without blocking,
// unless another goroutine is writing already. What the socket does not take is left to the writer
// goroutine, so a reader of the link never waits for it to drain: two nodes whose sockets are full
// cannot wedge each other. A hand-off to a goroutine would cost each mirrored write more than the
// wire does, and encrypting takes less time than the hand-off.
type conn struct {
	c    net.Conn // the socket, or TLS over it
	wire *wire
	tls  bool
	neg  Negotiated
	r    *bufio.Reader
	sent func(*pair.Msg) // called for each message that was written
	dead chan struct{}
	once sync.Once

	mu      sync.Mutex
	queue   []*pair.Msg
	spare   []*pair.Msg
	writing bool          // a goroutine owns the fields below
	wake    chan struct{} // the goroutine owns them from here on

	batch   []*pair.Msg
	headers []byte
	base    net.Buffers // storage of bufs
	bufs    net.Buffers // what is left to write
	iov     []unix.Iovec
	tryFn   func(fd uintptr) bool // tryWrite, made once: a closure for each batch would be an allocation
	tried   bool                  // nothing is left for the goroutine
	plain   []byte                // with TLS: what is to be encrypted
	sealed  bool                  // with TLS: the batch is encrypted, and the socket has not taken all of it

	scratch [headerLen]byte
}

// maxInline is the most that a kick writes itself; the checksum of more takes too long for a
// caller.
const maxInline = 256 << 10

// newConn makes a connection of the two ends of one: c is w, or TLS over it.
func newConn(c net.Conn, w *wire, neg Negotiated) *conn {
	out := &conn{c: c, wire: w, tls: c != net.Conn(w), neg: neg, r: bufio.NewReaderSize(c, 256<<10), wake: make(chan struct{}, 1), dead: make(chan struct{})}
	out.tryFn = out.tryWrite
	return out
}

// begin ends the handshake, whose writes wait.
func (c *conn) begin(sent func(*pair.Msg)) {
	c.sent = sent
	if c.tls {
		c.wire.goLive()
	}
}

// send queues a message. The message and its buffers must stay as they are until it has been sent.
func (c *conn) send(m *pair.Msg) {
	c.mu.Lock()
	c.queue = append(c.queue, m)
	c.mu.Unlock()
}

// kick writes what is queued.
func (c *conn) kick() {
	c.mu.Lock()
	for !c.writing && len(c.queue) > 0 {
		c.writing = true
		size := c.takeLocked()
		c.mu.Unlock()
		if size > maxInline || !c.try() {
			c.wake <- struct{}{} // has room: writing stays set until the goroutine is done
			return
		}
		c.mu.Lock()
		c.doneLocked()
	}
	c.mu.Unlock()
}

// takeLocked makes the queue the batch being written and returns its size.
func (c *conn) takeLocked() (size int) {
	c.batch, c.queue, c.spare = c.queue, c.spare[:0], nil
	for _, m := range c.batch {
		size += headerLen + len(m.Meta) + len(m.Data)
	}
	return size
}

func (c *conn) doneLocked() {
	if c.sent != nil {
		for _, m := range c.batch {
			c.sent(m)
		}
	}
	clear(c.batch)
	c.spare, c.batch = c.batch[:0], nil
	c.writing = false
}

// encode lays the batch out for writev.
func (c *conn) encode() {
	if need := len(c.batch) * headerLen; cap(c.headers) < need {
		c.headers = make([]byte, need)
	}
	c.base = c.base[:0]
	for i, m := range c.batch {
		h := c.headers[:cap(c.headers)][i*headerLen : (i+1)*headerLen]
		putHeader(h, uint8(c.neg.Version), m)
		c.base = append(c.base, h)
		if len(m.Meta) > 0 {
			c.base = append(c.base, m.Meta)
		}
		if len(m.Data) > 0 {
			c.base = append(c.base, m.Data)
		}
	}
	c.bufs = c.base
}

const maxIovecs = 512 // below the kernel's IOV_MAX

// try encodes and writes without blocking; false leaves the rest to the goroutine. A socket that is
// broken is left to the reader, which learns from it whether the peer's end was closed.
func (c *conn) try() bool {
	if c.tls {
		return c.trySealed()
	}
	c.encode()
	if c.wire.raw == nil {
		return false
	}
	c.tried = false
	err := c.wire.raw.Write(c.tryFn)
	if err != nil {
		c.close()
	}
	return c.tried || err != nil
}

func (c *conn) tryWrite(fd uintptr) bool {
	for len(c.bufs) > 0 {
		n, err := c.writev(fd)
		if err == unix.EINTR {
			continue
		}
		if err != 0 {
			c.tried = err != unix.EAGAIN
			return true
		}
		c.advance(n)
	}
	c.tried = true
	return true
}

// writev is the bare system call. The one in x/sys tells the race detector after the call that it
// has read the buffers, by when the peer may have answered and a buffer be in use again; it also
// allocates for every batch.
func (c *conn) writev(fd uintptr) (int, syscall.Errno) {
	c.iov = c.iov[:0]
	for _, b := range c.bufs[:min(len(c.bufs), maxIovecs)] {
		v := unix.Iovec{Base: unsafe.SliceData(b)}
		v.SetLen(len(b))
		c.iov = append(c.iov, v)
	}
	n, _, err := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&c.iov[0])), uintptr(len(c.iov)))
	clear(c.iov) // hold no buffer longer than needed
	return int(n), err
}

// advance drops n written bytes from bufs.
func (c *conn) advance(n int) {
	for n > 0 {
		if n < len(c.bufs[0]) {
			c.bufs[0] = c.bufs[0][n:]
			return
		}
		n -= len(c.bufs[0])
		c.bufs = c.bufs[1:]
	}
}

func (c *conn) close() {
	c.once.Do(func() {
		close(c.dead)
		_ = c.c.Close()
	})
}

// writeLoop writes what a kick could not, until the connection ends.
func (c *conn) writeLoop() {
	defer c.close()
	for {
		select {
		case <-c.wake:
		case <-c.dead:
			return
		}
		for {
			if err := c.writeBatch(); err != nil {
				return
			}
			c.mu.Lock()
			c.doneLocked()
			more := len(c.queue) > 0
			if more {
				c.writing = true
				c.takeLocked()
			}
			c.mu.Unlock()
			if !more {
				break
			}
		}
	}
}

// writeBatch writes the batch, or what is left of it, and waits for the socket.
func (c *conn) writeBatch() error {
	if c.tls {
		return c.writeSealed()
	}
	if len(c.bufs) == 0 {
		c.encode()
	}
	_ = c.wire.SetWriteDeadline(time.Now().Add(writeTimeout))
	out := c.bufs
	_, err := out.WriteTo(c.wire.Conn)
	c.bufs = nil
	if err == nil {
		_ = c.wire.SetWriteDeadline(time.Time{}) // or a later kick would meet it
	}
	return err
}
