package supervise

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/halfopen"
	"github.com/gemel-storage/gemel/internal/pki"
)

// report is one line of JSON from a supervisor to the partner's process. There is one right after
// the connection is made, one whenever a process was reaped, and one every aliveEvery.
type report struct {
	Cluster string             `json:"cluster"`
	Pair    string             `json:"pair"`
	Node    string             `json:"node"`
	Ended   []pair.Incarnation `json:"ended"` // that have been reaped, the latest last, at most maxReported
	Blames  []Blame            `json:"blames,omitempty"`
}

const (
	maxReported = 64
	maxReport   = 16 << 10 // bytes of a line
	aliveEvery  = 5 * time.Second
	silentMax   = 3 * aliveEvery // without a report a connection is made again
	sendMax     = 2 * time.Second
	// maxPartners is how many connections are open at a time: one, and what a restarted partner has
	// left behind. The oldest one gives way.
	maxPartners = 4
	maxUnknown  = 16
)

// testifier serves the reports of one supervisor.
type testifier struct {
	c       *Config
	unknown halfopen.Set
	blames  blames

	mu       sync.Mutex
	list     []pair.Incarnation
	news     chan struct{} // closed when list has changed
	partners []net.Conn
	wg       sync.WaitGroup
}

func newTestifier(c *Config) *testifier {
	return &testifier{c: c, news: make(chan struct{}), unknown: halfopen.Set{Max: maxUnknown}}
}

// ended adds a process that has been reaped.
func (t *testifier) ended(inc pair.Incarnation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, inc)
	if n := len(t.list) - maxReported; n > 0 {
		t.list = slices.Delete(t.list, 0, n)
	}
	close(t.news)
	t.news = make(chan struct{})
}

func (t *testifier) now() (report, chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return report{t.c.Cluster, t.c.Pair, t.c.Node, slices.Clone(t.list), t.blames.now()}, t.news
}

// serve accepts the partner until ctx ends.
func (t *testifier) serve(ctx context.Context) {
	l := t.c.Listen
	if t.c.TLS != nil { // it reports to the partner only
		partner, _ := pair.ParseNode(t.c.Node)
		l = tls.NewListener(l, t.c.TLS.Server(pki.RequireURI(pki.TargetURI(t.c.Cluster, t.c.Pair, partner.Peer().String()))))
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer t.wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: do not spin
			continue
		}
		t.wg.Go(func() {
			defer func() { _ = c.Close() }()
			end := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer end()
			if t.known(ctx, c) {
				t.tell(ctx, c)
			}
		})
	}
}

// known lets the partner show its certificate.
func (t *testifier) known(ctx context.Context, c net.Conn) bool {
	if t.c.TLS == nil {
		return true
	}
	half, _ := t.unknown.Add(c.RemoteAddr(), func() { _ = c.Close() })
	defer t.unknown.Remove(half)
	_ = c.SetDeadline(time.Now().Add(sendMax))
	server, ok := c.(*tls.Conn)
	if !ok {
		return false
	}
	if err := server.HandshakeContext(ctx); err != nil {
		t.c.Logger.Warn("supervisor: connection refused", "from", c.RemoteAddr(), "err", err)
		return false
	}
	return true
}

// tell reports on one connection until it ends.
func (t *testifier) tell(ctx context.Context, c net.Conn) {
	t.mu.Lock()
	t.partners = append(t.partners, c)
	if len(t.partners) > maxPartners {
		_ = t.partners[0].Close()
		t.partners = slices.Delete(t.partners, 0, 1)
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.partners = slices.DeleteFunc(t.partners, func(x net.Conn) bool { return x == c })
	}()
	for {
		r, news := t.now()
		_ = c.SetDeadline(time.Now().Add(sendMax))
		if err := json.NewEncoder(c).Encode(r); err != nil {
			return
		}
		select {
		case <-news:
		case <-time.After(aliveEvery):
		case <-ctx.Done():
			return
		}
	}
}
