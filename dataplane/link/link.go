package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/halfopen"
)

// Handler takes what a link brings. Calls for one link number come in the order Up, Messages…,
// Down; messages of the two connections come from two goroutines. Down is called after both readers
// have returned, and the next Up after Down has returned, so everything an older link carried has
// been handed over by then (R4).
type Handler interface {
	Up(n uint64)
	// Messages takes what has come, in its order. All that is sent because of it has to be kicked
	// when it returns: the reader may then wait for more. The slice is the reader's, which forgets
	// what is in it.
	Messages(n uint64, list []*pair.Msg)
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
	Sent          func(m *pair.Msg) // a message's buffers are not needed any more; under a lock of the link
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
	if cfg.TLS != nil {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.DynamicRecordSizingDisabled = true // small records serve readers that show what has come in part
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
	s.data.begin(l.cfg.Sent)
	s.beat.begin(nil)
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

// maxBatch is how many messages are handed over together at most.
const maxBatch = 16

// read hands over what has come before it waits for more: the messages that come with one read of
// the socket cost less together.
func (l *Link) read(s *session, c *conn, alloc func(int) []byte) error {
	var batch []*pair.Msg
	handOver := func() {
		if len(batch) > 0 {
			l.h.Messages(s.n, batch)
			clear(batch)
			batch = batch[:0]
		}
	}
	c.wire.idle = handOver
	for {
		m, err := ReadMsg(c.r, uint8(c.neg.Version), &c.scratch, alloc)
		if err != nil {
			handOver()
			return err
		}
		if batch = append(batch, m); len(batch) == maxBatch {
			handOver()
		}
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
