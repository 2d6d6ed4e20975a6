package nodesim

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Connections of the simulated network. Nodes and hosts do their I/O with system calls of their own on sockets of the kernel, and they
// do so here: each end of a connection has a pair of connected Unix sockets, of which the program under test has one. The network moves
// bytes between the other two, under fake time. No system call waits: whoever has to wait does so on a condition, as a bubble of
// testing/synctest needs it.

// window is how many bytes of one direction are on their way at most.
const window = 256 << 10

// pipe is one connection.
type pipe struct {
	n    *network
	mu   sync.Mutex // of all below, and never held over a wait
	ends [2]*end
	buf  [64 << 10]byte
}

// end is one side of a connection, a net.Conn and a syscall.Conn.
type end struct {
	p       *pipe
	host    string // the machine that it is on
	owner   *life  // nil: of a host
	local   *net.TCPAddr
	remote  *net.TCPAddr
	app, nw int // descriptors: the program's socket and the network's
	cond    sync.Cond
	turn    uint64 // counts what may end a wait
	users   int    // calls that are using app
	closed  bool   // by the program
	ended   bool   // app is closed
	gone    bool   // nw is closed
	rd, wd  deadline
	out     flow
}

type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// flow is what is on its way from an end to the other one.
type flow struct {
	queue []segment
	bytes int
	last  time.Time // when the last segment arrives
	fin   bool      // the sender has closed, and all it sent is in queue
	timer *time.Timer
}

type segment struct {
	at   time.Time
	data []byte
	fin  bool
}

func newPipe(n *network, hosts [2]string, owners [2]*life, addrs [2]*net.TCPAddr) (*pipe, error) {
	p := &pipe{n: n}
	for i := range p.ends {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		e := &end{p: p, host: hosts[i], owner: owners[i], local: addrs[i], remote: addrs[1-i], app: fds[0], nw: fds[1]}
		e.cond.L = &p.mu
		p.ends[i] = e
	}
	return p, nil
}

func (e *end) peer() *end {
	if e.p.ends[0] == e {
		return e.p.ends[1]
	}
	return e.p.ends[0]
}

// stir lets everybody who waits at this end look again. mu is held.
func (e *end) stir() {
	e.turn++
	e.cond.Broadcast()
}

// use runs f with the program's descriptor. done is what f returned; turn was read before.
func (e *end) use(d *deadline, f func(fd uintptr) bool) (done bool, turn uint64, err error) {
	e.p.mu.Lock()
	if e.closed {
		e.p.mu.Unlock()
		return false, 0, net.ErrClosed
	}
	if d != nil && d.over() {
		e.p.mu.Unlock()
		return false, 0, os.ErrDeadlineExceeded
	}
	e.users++
	turn = e.turn
	fd := e.app
	e.p.mu.Unlock()
	done = f(uintptr(fd))
	e.p.mu.Lock()
	e.users--
	e.endLocked()
	e.p.mu.Unlock()
	return done, turn, nil
}

func (e *end) wait(turn uint64) {
	e.p.mu.Lock()
	for e.turn == turn {
		e.cond.Wait()
	}
	e.p.mu.Unlock()
}

// Read implements syscall.RawConn.
func (r rawEnd) Read(f func(fd uintptr) bool) error {
	for {
		done, turn, err := r.use(&r.rd, f)
		if err != nil {
			return err
		}
		r.p.mu.Lock()
		r.peer().deliverLocked() // there may be room now
		r.p.mu.Unlock()
		if done {
			return nil
		}
		r.wait(turn)
	}
}

// Write implements syscall.RawConn.
func (r rawEnd) Write(f func(fd uintptr) bool) error {
	for {
		done, turn, err := r.use(&r.wd, f)
		if err != nil {
			return err
		}
		r.p.mu.Lock()
		r.pumpLocked()
		r.p.mu.Unlock()
		if done {
			return nil
		}
		r.wait(turn)
	}
}

// Control implements syscall.RawConn.
func (r rawEnd) Control(f func(fd uintptr)) error {
	_, _, err := r.use(nil, func(fd uintptr) bool { f(fd); return true })
	return err
}

type rawEnd struct{ *end }

// SyscallConn implements syscall.Conn.
func (e *end) SyscallConn() (syscall.RawConn, error) { return rawEnd{e}, nil }

// Read implements net.Conn.
func (e *end) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	rerr := rawEnd{e}.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), b)
		return err != unix.EAGAIN
	})
	switch {
	case rerr != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: e.local, Addr: e.remote, Err: rerr}
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: e.local, Addr: e.remote, Err: os.NewSyscallError("read", err)}
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (e *end) Write(b []byte) (n int, err error) {
	for n < len(b) {
		var k int
		rerr := rawEnd{e}.Write(func(fd uintptr) bool {
			k, err = unix.Write(int(fd), b[n:])
			return err != unix.EAGAIN
		})
		if rerr != nil {
			return n, &net.OpError{Op: "write", Net: "tcp", Source: e.local, Addr: e.remote, Err: rerr}
		}
		if err != nil {
			return n, &net.OpError{Op: "write", Net: "tcp", Source: e.local, Addr: e.remote, Err: os.NewSyscallError("write", err)}
		}
		n += k
	}
	return n, nil
}

// Close implements net.Conn.
func (e *end) Close() error {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	e.closed = true
	for _, d := range []*deadline{&e.rd, &e.wd} {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	e.endLocked()
	e.stir()
	return nil
}

// endLocked closes the program's socket when nobody uses it any more. What it had written goes on its way.
func (e *end) endLocked() {
	if !e.closed || e.ended || e.users > 0 {
		return
	}
	e.ended = true
	_ = unix.Close(e.app)
	e.pumpLocked()
}

// pumpLocked puts what the program has written on its way.
func (e *end) pumpLocked() {
	f := &e.out
	for !f.fin && !e.gone && f.bytes < window {
		buf := e.p.buf[:]
		n, err := unix.Read(e.nw, buf)
		if err == unix.EAGAIN {
			break
		}
		if err != nil || n <= 0 {
			f.fin = true
			n = 0
		}
		at := e.p.n.arrival(e.host, e.peer().host, n, f.last)
		f.last = at
		f.queue = append(f.queue, segment{at: at, data: bytes.Clone(buf[:n]), fin: f.fin})
		f.bytes += n
		e.stir() // the socket has room again
	}
	e.deliverLocked()
}

// deliverLocked hands the other end what has arrived, and sets the timer for the rest.
func (e *end) deliverLocked() {
	f, to := &e.out, e.peer()
	moved := false
	for len(f.queue) > 0 {
		s := &f.queue[0]
		if wait := time.Until(s.at); wait > 0 {
			f.arm(wait, e)
			break
		}
		if e.p.n.isCut(e.host, to.host) {
			break // the network delivers when it has healed
		}
		if !e.handLocked(to, s) {
			break // the receiver's socket is full; its next read comes here
		}
		f.bytes -= len(s.data)
		f.queue = f.queue[1:]
		moved = true
	}
	if moved {
		to.stir()
		e.pumpLocked()
	}
}

// handLocked gives one segment to a receiver, whole or in part.
func (e *end) handLocked(to *end, s *segment) (all bool) {
	if to.closed || to.gone {
		if len(s.data) > 0 {
			e.resetLocked() // nobody is there: the sender is told
		}
		return true
	}
	if s.fin {
		_ = unix.Shutdown(to.nw, unix.SHUT_WR)
		return true
	}
	for len(s.data) > 0 {
		n, err := unix.Write(to.nw, s.data)
		if err == unix.EAGAIN {
			to.stir()
			return false
		}
		if err != nil {
			return true
		}
		s.data = s.data[n:]
		e.out.bytes -= n
	}
	return true
}

// resetLocked is a reset that has come back to this end.
func (e *end) resetLocked() {
	if e.gone {
		return
	}
	e.gone = true
	_ = unix.Close(e.nw)
	e.out.fin = true
	e.stir()
}

func (f *flow) arm(d time.Duration, e *end) {
	if f.timer != nil {
		f.timer.Reset(d)
		return
	}
	f.timer = time.AfterFunc(d, func() {
		e.p.mu.Lock()
		defer e.p.mu.Unlock()
		e.deliverLocked()
	})
}

// kick goes on after the network has changed.
func (p *pipe) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.ends {
		e.pumpLocked()
	}
}

// over tells that nothing of the connection is left to do.
func (p *pipe) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends[0].ended && p.ends[1].ended
}

// idle tells that nothing is on its way.
func (p *pipe) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ends[0].out.queue)+len(p.ends[1].out.queue) == 0
}

// free closes what is left of the descriptors, at the end of a history.
func (p *pipe) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.ends {
		if !e.ended {
			e.closed, e.ended = true, true
			_ = unix.Close(e.app)
		}
		if !e.gone {
			e.gone = true
			_ = unix.Close(e.nw)
		}
		if e.out.timer != nil {
			e.out.timer.Stop()
		}
		e.out.queue, e.out.fin = nil, true
		e.stir()
	}
}

// LocalAddr implements net.Conn.
func (e *end) LocalAddr() net.Addr { return e.local }

// RemoteAddr implements net.Conn.
func (e *end) RemoteAddr() net.Addr { return e.remote }

// SetDeadline implements net.Conn.
func (e *end) SetDeadline(t time.Time) error {
	e.set(t, &e.rd, &e.wd)
	return nil
}

// SetReadDeadline implements net.Conn.
func (e *end) SetReadDeadline(t time.Time) error {
	e.set(t, &e.rd)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (e *end) SetWriteDeadline(t time.Time) error {
	e.set(t, &e.wd)
	return nil
}

func (e *end) set(t time.Time, ds ...*deadline) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	for _, d := range ds {
		d.at = t
		if d.timer != nil {
			d.timer.Stop()
			d.timer = nil
		}
		if left := time.Until(t); !t.IsZero() && left > 0 && !e.closed {
			d.timer = time.AfterFunc(left, func() {
				e.p.mu.Lock()
				defer e.p.mu.Unlock()
				e.stir()
			})
		}
	}
	e.stir()
}
