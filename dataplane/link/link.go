package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/halfopen"
)

// Handler takes what a link brings. Calls for one link number come in the order Up, Message…, Down;
// messages of the two connections come from two goroutines. Down is called after both readers have
// returned, and the next Up after Down has returned, so everything an older link carried has been
// handed over by then (R4).
type Handler interface {
	Up(n uint64)
	Message(n uint64, m *pair.Msg)
	// Down ends link n. reset tells that the peer's end is known to be closed, not merely silent.
	Down(n uint64, reset bool, why string)
}

// Config of a link. Node a listens, node b dials.
type Config struct {
	Cluster, Pair string
	Self          pair.Node
	Listen        net.Listener                                                      // node a
	Dial          string                                                            // node b: host:port of node a
	DialFunc      func(ctx context.Context, network, addr string) (net.Conn, error) // default net.Dialer's
	TLS           *tls.Config                                                       // nil: plain, which the caller allows on loopback only
	Alloc         func(n int) []byte
	Logger        *slog.Logger
	Retry         time.Duration // between attempts to dial, default 50 ms

	// Versions of the frame format to offer; the zero value is what this release speaks.
	Versions Versions
	// Features to offer, by name: what the protocol above has beyond the version. At most
	// maxFeatures.
	Features []string
}

// Link keeps one link to the peer up.
type Link struct {
	cfg  Config
	h    Handler
	mu   sync.Mutex
	cur  *session
	n    uint64
	half map[uint64]*conn // node a: data connections whose heartbeat connection is still to come
	wg   sync.WaitGroup
	up   chan *session

	unknown halfopen.Set // node a: accepted, and it is not known from whom
	evicted atomic.Uint64
}

type session struct {
	n          uint64
	data, beat *conn
	once       sync.Once
	why        error
}

func (s *session) fail(err error) {
	s.once.Do(func() {
		s.why = err
		s.data.close()
		s.beat.close()
	})
}

// errBroken says that this side gave the link up.
var errBroken = errors.New("this node closed the link")

// New makes a link; Run keeps it.
func New(cfg Config, h Handler) *Link {
	if cfg.Retry == 0 {
		cfg.Retry = 50 * time.Millisecond
	}
	if cfg.DialFunc == nil {
		cfg.DialFunc = new(net.Dialer).DialContext
	}
	if cfg.Versions == (Versions{}) {
		cfg.Versions = Versions{MinVersion, Version}
	}
	return &Link{cfg: cfg, h: h, half: map[uint64]*conn{}, up: make(chan *session),
		unknown: halfopen.Set{Max: maxUnknown}}
}

// Negotiated returns what was negotiated for link n; ok is false if n is not the current link.
// It may be called from Up on.
func (l *Link) Negotiated(n uint64) (neg Negotiated, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == nil || l.cur.n != n {
		return Negotiated{}, false
	}
	return l.cur.data.neg, true
}

// Send queues a message on the link numbered n; on another link it is dropped. It never blocks, and
// nothing leaves before the next Kick.
func (l *Link) Send(n uint64, m *pair.Msg) {
	l.mu.Lock()
	s := l.cur
	l.mu.Unlock()
	if s == nil || s.n != n {
		return
	}
	if m.Type == pair.MsgHeartbeat || m.Type == pair.MsgHeartbeatAck {
		s.beat.send(m)
	} else {
		s.data.send(m)
	}
}

// Kick writes what is queued, as far as the sockets take it at once. Call it with no lock held
// after every Send.
func (l *Link) Kick() {
	l.mu.Lock()
	s := l.cur
	l.mu.Unlock()
	if s != nil {
		s.beat.kick()
		s.data.kick()
	}
}

// Break ends the present link; a new one is made.
func (l *Link) Break(why string) {
	l.mu.Lock()
	s := l.cur
	l.mu.Unlock()
	if s != nil {
		s.fail(fmt.Errorf("%w: %s", errBroken, why))
	}
}

// Run connects and reconnects the link until ctx ends, and waits for all goroutines that it
// started.
func (l *Link) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		l.wg.Wait()
		for _, c := range l.half {
			c.close()
		}
	}()
	if l.cfg.Self == pair.A {
		l.wg.Go(func() { l.accept(ctx) })
	} else {
		l.wg.Go(func() { l.dial(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s := <-l.up:
			l.serve(ctx, s)
		}
	}
}

// serve runs one session to its end.
func (l *Link) serve(ctx context.Context, s *session) {
	l.mu.Lock()
	l.n++
	s.n = l.n
	l.cur = s
	l.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { s.fail(errBroken) })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(s.data.writeLoop)
	wg.Go(func() {
		runtime.LockOSThread() // as for the reader below
		defer runtime.UnlockOSThread()
		s.beat.writeLoop()
	})
	l.h.Up(s.n)
	wg.Go(func() { s.fail(l.read(s, s.data, l.cfg.Alloc)) })
	wg.Go(func() {
		runtime.LockOSThread() // a starved scheduler must not cost the lease (R3)
		defer runtime.UnlockOSThread()
		s.fail(l.read(s, s.beat, nil))
	})
	wg.Wait()
	l.mu.Lock()
	l.cur = nil
	l.mu.Unlock()
	l.h.Down(s.n, isReset(s.why), s.why.Error())
}

func (l *Link) read(s *session, c *conn, alloc func(int) []byte) error {
	for {
		m, err := ReadMsg(c.r, uint8(c.neg.Version), &c.scratch, alloc)
		if err != nil {
			return err
		}
		l.h.Message(s.n, m)
	}
}

// isReset tells a closed peer from one that is merely silent.
func isReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

func (l *Link) hello(role string, n uint64) Hello {
	v := l.cfg.Versions
	return Hello{Version: v.Min, Min: v.Min, Max: v.Max, Features: l.cfg.Features, Cluster: l.cfg.Cluster, Pair: l.cfg.Pair,
		Node: l.cfg.Self.String(), Role: role, Link: n}
}

// judge decides whether a hello is the peer's, and under what the link will run.
func (l *Link) judge(h *Hello) (Negotiated, error) {
	if err := h.check(l.cfg.Cluster, l.cfg.Pair, l.cfg.Self.Peer().String()); err != nil {
		return Negotiated{}, err
	}
	return negotiate(l.cfg.Versions, l.cfg.Features, h)
}

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
	c, err := l.cfg.DialFunc(ctx, "tcp", l.cfg.Dial)
	if err != nil {
		return nil, err
	}
	if l.cfg.TLS != nil {
		c = tls.Client(c, l.cfg.TLS)
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
	return newConn(c, neg), nil
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

func (l *Link) accepted(ctx context.Context, c net.Conn, half *halfopen.Entry) {
	_ = c.SetDeadline(time.Now().Add(helloTimeout))
	if l.cfg.TLS != nil {
		c = tls.Server(c, l.cfg.TLS)
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
		data = newConn(c, neg)
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
	s := &session{data: data, beat: newConn(c, neg)}
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
