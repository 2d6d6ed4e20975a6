package nodesim

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Connections of the simulated network. Nodes and hosts do their I/O with system calls of their own
// on sockets of the kernel, and they do so here: each end of a connection has a pair of connected
// Unix sockets, of which the program under test has one. The network moves bytes between the other
// two, under fake time. No system call waits: a goroutine that has to wait does so on a condition,
// as a bubble of testing/synctest needs it.

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

func (e *end) peer() *end {
	if e.p.ends[0] == e {
		return e.p.ends[1]
	}
	return e.p.ends[0]
}

// stir wakes every goroutine that waits at this end. mu is held.
func (e *end) stir() {
	e.turn++
	e.cond.Broadcast()
}

type rawEnd struct{ *end }

// SyscallConn implements syscall.Conn.
func (e *end) SyscallConn() (syscall.RawConn, error) { return rawEnd{e}, nil }

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
