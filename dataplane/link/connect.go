package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/gemel-storage/gemel/internal/halfopen"
)

// dial is node b's side.
func (l *Link) dial(ctx context.Context) {
	var last string
	for ctx.Err() == nil {
		s, err := l.dialOnce(ctx)
		if err == nil {
			last = ""
			select {
			case l.up <- s:
			case <-ctx.Done():
				s.fail(errBroken)
				return
			}
			<-s.data.dead // until then there is nothing to dial for
			<-s.beat.dead
			continue
		}
		if err.Error() != last && ctx.Err() == nil {
			last = err.Error()
			l.cfg.Logger.Info("link: cannot connect to the peer yet; trying again", "addr", l.cfg.Dial, "err", err)
		}
		select {
		case <-time.After(l.cfg.Retry):
		case <-ctx.Done():
		}
	}
}

func (l *Link) dialOnce(ctx context.Context) (*session, error) {
	n := rand.Uint64()
	var conns [2]*conn
	for i, role := range []string{"data", "beat"} {
		c, err := l.dialRole(ctx, role, n)
		if err != nil {
			if i == 1 {
				conns[0].close()
			}
			return nil, err
		}
		conns[i] = c
	}
	s := &session{data: conns[0], beat: conns[1]}
	if err := s.agree(); err != nil {
		s.fail(err)
		return nil, err
	}
	return s, nil
}

func (l *Link) dialRole(ctx context.Context, role string, n uint64) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	sock, err := l.cfg.DialFunc(ctx, "tcp", l.cfg.Dial)
	if err != nil {
		return nil, err
	}
	w := newWire(sock, l.cfg.TLS != nil)
	c := net.Conn(w)
	if l.cfg.TLS != nil {
		c = tls.Client(w, l.cfg.TLS)
	}
	_ = c.SetDeadline(time.Now().Add(helloTimeout))
	var (
		h   Hello
		neg Negotiated
	)
	if err = writeHello(c, l.hello(role, n)); err == nil {
		if h, err = readHello(c); err == nil {
			if neg, err = l.judge(&h); err == nil {
				err = neg.chosen(&h)
			}
		}
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	return newConn(c, w, neg), nil
}

// accept is node a's side.
func (l *Link) accept(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = l.cfg.Listen.Close() })
	defer stop()
	for {
		c, err := l.cfg.Listen.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: do not spin
			continue
		}
		half, evicted := l.unknown.Add(c.RemoteAddr(), func() { _ = c.Close() })
		if evicted {
			l.evicted.Add(1)
		}
		l.wg.Go(func() {
			defer l.unknown.Remove(half)
			l.accepted(ctx, c, half)
		})
	}
}

// maxUnknown is how many connections may be accepted whose peer has not shown its certificate and
// its hello yet. With more the oldest is closed, of the address that has the most: idle sockets
// must not keep the partner out.
const maxUnknown = 16

// Evicted counts connections that were closed before they were authenticated, to make room for
// newer ones.
func (l *Link) Evicted() uint64 { return l.evicted.Load() }

// await keeps a data connection until its heartbeat connection comes. One waits at most.
func (l *Link) await(n uint64, c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, old := range l.half {
		old.close()
		delete(l.half, k)
	}
	l.half[n] = c
}

func (l *Link) accepted(ctx context.Context, sock net.Conn, half *halfopen.Entry) {
	_ = sock.SetDeadline(time.Now().Add(helloTimeout))
	w := newWire(sock, l.cfg.TLS != nil)
	c := net.Conn(w)
	if l.cfg.TLS != nil {
		c = tls.Server(w, l.cfg.TLS)
	}
	h, err := readHello(c)
	var neg Negotiated
	if err == nil {
		neg, err = l.judge(&h)
	}
	answer := l.hello(h.Role, h.Link)
	if err == nil {
		l.unknown.Remove(half) // it is the peer; what it does next waits for it, and not for room
		answer.Version = neg.Version
	} else {
		answer.Error = err.Error()
		l.cfg.Logger.Warn("link: connection refused", "from", c.RemoteAddr(), "err", err)
	}
	var data *conn
	if err == nil && h.Role == "data" {
		data = newConn(c, w, neg)
		l.await(h.Link, data) // before the answer: the heartbeat connection may be here right after it
	}
	if werr := writeHello(c, answer); err != nil || werr != nil {
		_ = c.Close() // a data connection that is dead fails the link that it becomes part of
		return
	}
	_ = c.SetDeadline(time.Time{})
	if data != nil {
		return
	}
	l.mu.Lock()
	data = l.half[h.Link]
	delete(l.half, h.Link)
	old := l.cur
	l.mu.Unlock()
	if data == nil {
		_ = c.Close()
		return
	}
	s := &session{data: data, beat: newConn(c, w, neg)}
	if err := s.agree(); err != nil {
		l.cfg.Logger.Warn("link: connection refused", "from", c.RemoteAddr(), "err", err)
		s.fail(err)
		return
	}
	if old != nil {
		old.fail(fmt.Errorf("%w: replaced by a new connection of the peer", errBroken))
	}
	select {
	case l.up <- s:
	case <-ctx.Done():
		s.fail(errBroken)
	}
}
