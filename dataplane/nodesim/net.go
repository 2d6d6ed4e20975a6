package nodesim

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// network is all machines and what is between them. A machine is known by its address.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	pipes     []*pipe
	nextPort  int
	closed    bool

	wayMu   sync.Mutex // of how the ways are; it may be taken with a pipe's held
	ways    map[way]*condition
	changed chan struct{} // closed and replaced when something has changed
}

// way is one direction between two machines.
type way struct{ from, to string }

// condition is how a way is.
type condition struct {
	delay  time.Duration
	rate   float64 // bytes a second; 0: no limit
	cuts   int     // reasons why nothing arrives
	behind time.Time
}

const usualDelay = 100 * time.Microsecond

func newNetwork() *network {
	return &network{listeners: map[string]*listener{}, ways: map[way]*condition{}, nextPort: 40000, changed: make(chan struct{})}
}

func (n *network) wayLocked(from, to string) *condition {
	c := n.ways[way{from, to}]
	if c == nil {
		c = &condition{delay: usualDelay}
		n.ways[way{from, to}] = c
	}
	return c
}

// set changes one direction.
func (n *network) set(from, to string, f func(*condition)) {
	n.wayMu.Lock()
	f(n.wayLocked(from, to))
	close(n.changed)
	n.changed = make(chan struct{})
	n.wayMu.Unlock()
	n.mu.Lock()
	pipes := n.pipes
	n.mu.Unlock()
	for _, p := range pipes {
		p.kick()
	}
}

// setBoth changes both directions between two machines.
func (n *network) setBoth(x, y string, f func(*condition)) {
	n.set(x, y, f)
	n.set(y, x, f)
}

// cut stops or resumes one direction; cuts add up.
func (n *network) cut(from, to string, by int) {
	n.set(from, to, func(c *condition) { c.cuts += by })
}

// cutBoth stops or resumes both directions between two machines.
func (n *network) cutBoth(x, y string, by int) {
	n.setBoth(x, y, func(c *condition) { c.cuts += by })
}

func (n *network) isCut(from, to string) bool {
	n.wayMu.Lock()
	defer n.wayMu.Unlock()
	return n.wayLocked(from, to).cuts > 0
}

// arrival is when size bytes that are sent now arrive.
func (n *network) arrival(from, to string, size int, last time.Time) time.Time {
	n.wayMu.Lock()
	defer n.wayMu.Unlock()
	c := n.wayLocked(from, to)
	at := time.Now()
	if c.rate > 0 {
		if c.behind.After(at) {
			at = c.behind
		}
		at = at.Add(time.Duration(float64(size) / c.rate * float64(time.Second)))
		c.behind = at
	}
	if at = at.Add(c.delay); at.Before(last) {
		return last
	}
	return at
}

type listener struct {
	n      *network
	addr   *net.TCPAddr
	owner  *life
	queue  chan *end
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case e := <-l.queue:
		return e, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.n.mu.Lock()
		if l.n.listeners[l.addr.String()] == l {
			delete(l.n.listeners, l.addr.String())
		}
		close(l.closed)
		l.n.mu.Unlock()
		for {
			select {
			case e := <-l.queue:
				_ = e.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

func (n *network) listen(owner *life, address string) (net.Listener, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr.String()] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: addr, Err: syscall.EADDRINUSE}
	}
	l := &listener{n: n, addr: addr, owner: owner, queue: make(chan *end, 128), closed: make(chan struct{})}
	n.listeners[addr.String()] = l
	return l, nil
}

// dial connects from a machine. It takes a round trip, and as long as the network is cut.
func (n *network) dial(ctx context.Context, from string, owner *life, address string) (net.Conn, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	to := addr.IP.String()
	failed := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Err: err}
	}
	for {
		n.wayMu.Lock()
		there, back := n.wayLocked(from, to), n.wayLocked(to, from)
		open := there.cuts == 0 && back.cuts == 0
		trip := there.delay + back.delay
		changed := n.changed
		n.wayMu.Unlock()
		if open {
			t := time.NewTimer(trip)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return failed(ctx.Err())
			}
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return failed(ctx.Err())
		}
	}
	if owner != nil && owner.isDead() {
		return failed(syscall.ENETDOWN)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[addr.String()]
	if l == nil || n.closed {
		return failed(syscall.ECONNREFUSED)
	}
	n.nextPort++
	p, err := newPipe(n, [2]string{from, to}, [2]*life{owner, l.owner}, [2]*net.TCPAddr{{IP: net.ParseIP(from), Port: n.nextPort}, addr})
	if err != nil {
		return failed(err)
	}
	select {
	case l.queue <- p.ends[1]:
	default:
		p.free()
		return failed(syscall.ECONNREFUSED)
	}
	n.pipes = append(n.live(), p)
	return p.ends[0], nil
}

// live drops connections that are over. mu is held.
func (n *network) live() (keep []*pipe) {
	for _, p := range n.pipes {
		if p.over() && p.idle() {
			p.free()
			continue
		}
		keep = append(keep, p)
	}
	return keep
}

// die closes whatever a process had open, as its kernel does when it ends.
func (n *network) die(of *life) {
	n.mu.Lock()
	var ls []*listener
	for _, l := range n.listeners {
		if l.owner == of {
			ls = append(ls, l)
		}
	}
	pipes := n.pipes
	n.mu.Unlock()
	for _, l := range ls {
		_ = l.Close()
	}
	for _, p := range pipes {
		for _, e := range p.ends {
			if e.owner == of {
				_ = e.Close()
			}
		}
	}
}

// free gives everything back at the end of a history, and says how many connections had been left
// open.
func (n *network) free() error {
	n.mu.Lock()
	n.closed = true
	pipes := n.pipes
	n.mu.Unlock()
	open := 0
	for _, p := range pipes {
		if !p.over() {
			open++
		}
		p.free()
	}
	if open > 0 {
		return fmt.Errorf("%d connections were left open", open)
	}
	return nil
}
