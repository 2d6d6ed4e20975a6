package supervise

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Follower keeps a connection to the supervisor of the other node.
type Follower struct {
	Cluster, Pair string
	Node          string // the other node
	Addr          string // host:port of its supervisor
	Dial          func(ctx context.Context, network, addr string) (net.Conn, error)
	TLS           *tls.Config // nil: plain
	Logger        *slog.Logger
	// Ended takes what the supervisor reports, each time it reports: the processes of its node that
	// have ended.
	Ended func([]pair.Incarnation)
	// Blames takes what it knows of LUNs whose commands ended processes, each time it reports.
	Blames func([]Blame)

	connected atomic.Bool
}

// Connected reports whether the supervisor would be heard at this moment, as far as is known.
func (f *Follower) Connected() bool { return f.connected.Load() }

// Times between two attempts to connect: the partner's container may be starting, or be of a
// release that has no supervisor.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
	dialMax  = 2 * time.Second
)

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	var last string
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := f.follow(ctx)
		if f.connected.Swap(false) {
			wait, last = retryMin, ""
		}
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last {
			last = text
			f.Logger.Info("not connected to the peer's supervisor; until then a crash of the peer's process costs the pair a lease; trying again", "addr", f.Addr, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (f *Follower) follow(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, dialMax)
	plain, err := f.Dial(dial, "tcp", f.Addr)
	cancel()
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = plain.Close() })
	defer stop()
	c := plain
	if f.TLS != nil {
		c = tls.Client(plain, f.TLS)
	}
	in := bufio.NewReaderSize(c, maxReport)
	for {
		limit := silentMax
		if !f.connected.Load() {
			limit = dialMax
		}
		_ = c.SetDeadline(time.Now().Add(limit))
		line, err := in.ReadSlice('\n')
		if err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				return fmt.Errorf("a report of more than %d bytes", maxReport)
			}
			if errors.Is(err, io.EOF) {
				return errors.New("the supervisor closed the connection")
			}
			return err
		}
		var r report
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("what answers is no supervisor: %w", err)
		}
		if r.Cluster != f.Cluster || r.Pair != f.Pair || r.Node != f.Node {
			return fmt.Errorf("the supervisor is of cluster %q pair %q node %q, not of cluster %q pair %q node %q: check --peer-supervisor", r.Cluster, r.Pair, r.Node, f.Cluster, f.Pair, f.Node)
		}
		f.connected.Store(true)
		// Blames first: an exclusion makes this node the owner, whose process may be the next to
		// crash.
		if len(r.Blames) > 0 && f.Blames != nil {
			f.Blames(r.Blames)
		}
		f.Ended(r.Ended)
	}
}
