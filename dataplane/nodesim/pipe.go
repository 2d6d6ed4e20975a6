package nodesim

import (
	"bytes"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// window is how many bytes of one direction are on their way at most.
const window = 256 << 10

// pipe is one connection.
type pipe struct {
	n    *network
	mu   sync.Mutex // of all below, and never held over a wait
	ends [2]*end
	buf  [64 << 10]byte
}

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

// endLocked closes the program's socket when no call uses it any more. Data that was written before
// is still delivered.
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
			e.resetLocked() // the receiver has closed its end: the sender gets a reset
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

// kick continues after the network has changed.
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
