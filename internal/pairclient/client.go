// Package pairclient reaches the control API of a pair: one client over both its nodes. A call goes
// to the node that answered last and, while that one cannot take it, to the other, until the
// patience is over. That is safe since every call of the control API is idempotent.
package pairclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Config of a Client.
type Config struct {
	Endpoints []string      // host:port of the control API of each node, 1 to 8
	TLS       *tls.Config   // nil: without, for loopback only
	Patience  time.Duration // how long a call is tried while no node takes it; default 20 s
	// Rest is how long, after a call that no node took, others fail at once: many callers are not
	// to wait one by one for a pair that is away. After that one call at a time tries, and others
	// fail at once beside it, until a node answers. Default 0: each tries.
	Rest time.Duration
}

// Client is the pair's control API. Errors are gRPC statuses: Unavailable when no node took the
// call within the patience, DeadlineExceeded or Canceled when the context ended before; after these
// the call may or may not have taken effect.
type Client struct {
	targetv1.TargetServiceClient
	Nodes []Node // each one alone, in the order of Config.Endpoints

	patience, rest time.Duration
	good           atomic.Int32 // the node that answered last
	away           atomic.Bool  // no node took a call, and none has answered since; only with rest
	trying         atomic.Bool  // a call tries although away
	resting        atomic.Int64 // until then no call tries, in nanoseconds since start
	start          time.Time
}

// Node is one node of the pair.
type Node struct {
	targetv1.TargetServiceClient
	Address string
	conn    *watchedConn
}

// retryInterval is between two rounds over all nodes.
const retryInterval = 200 * time.Millisecond

// silence is after how long an unanswered TCP segment ends a connection: a node that lost its power
// sends no reset.
const silence = 5 * time.Second

// New connects lazily.
func New(c Config) (*Client, error) {
	if len(c.Endpoints) == 0 || len(c.Endpoints) > 8 {
		return nil, fmt.Errorf("pair client: %d endpoints, must be 1 to 8: give the control address of each node of the pair", len(c.Endpoints))
	}
	if c.Patience < 0 {
		return nil, fmt.Errorf("pair client: patience %v is negative", c.Patience)
	}
	if c.Patience == 0 {
		c.Patience = 20 * time.Second
	}
	creds := insecure.NewCredentials()
	if c.TLS != nil {
		creds = credentials.NewTLS(c.TLS)
	}
	p := &Client{patience: c.Patience, rest: c.Rest, start: time.Now()}
	p.TargetServiceClient = targetv1.NewTargetServiceClient((*failover)(p))
	for _, e := range c.Endpoints {
		host, _, err := net.SplitHostPort(e)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("pair client: endpoint %q: %w", e, err), p.Close())
		}
		if ip := net.ParseIP(host); c.TLS == nil && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, errors.Join(fmt.Errorf("pair client: endpoint %q: set certificates, or use a loopback address", e), p.Close())
		}
		conn, err := grpc.NewClient("passthrough:///"+e, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(dial),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second,
				Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("pair client: endpoint %q: %w", e, err), p.Close())
		}
		watched := &watchedConn{conn, &pulse{node: targetv1.NewTargetServiceClient(conn), start: p.start}}
		p.Nodes = append(p.Nodes, Node{targetv1.NewTargetServiceClient(watched), e, watched})
	}
	return p, nil
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: int(silence / time.Second)},
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			cerr := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			})
			return errors.Join(cerr, err)
		},
	}
	return d.DialContext(ctx, "tcp", addr)
}

// Close ends the connections, and with them the calls under way.
func (p *Client) Close() error {
	var errs []error
	for _, n := range p.Nodes {
		errs = append(errs, n.conn.Close())
	}
	return errors.Join(errs...)
}

// failover makes the nodes' connections one.
type failover Client

var _ grpc.ClientConnInterface = (*failover)(nil)

// Invoke asks one node and, while the answer is that it cannot now, the others.
func (p *failover) Invoke(ctx context.Context, method string, q, r any, opts ...grpc.CallOption) error {
	if p.away.Load() {
		if left := time.Duration(p.resting.Load()) - time.Since(p.start); left > 0 {
			return status.Errorf(codes.Unavailable, "no node answered the last call; trying again in %v", left.Round(time.Millisecond))
		}
		if !p.trying.CompareAndSwap(false, true) {
			return status.Error(codes.Unavailable, "no node answered the last call; another call is trying")
		}
		defer p.trying.Store(false)
	}
	first := int(p.good.Load())
	for start := time.Now(); ; {
		var err error
		for i := range p.Nodes {
			k := (first + i) % len(p.Nodes)
			err = p.Nodes[k].conn.Invoke(ctx, method, q, r, opts...)
			switch status.Code(err) {
			case codes.Unavailable:
				err = fmt.Errorf("%s: %w", p.Nodes[k].Address, err)
			case codes.DeadlineExceeded:
				p.good.Store(int32((k + 1) % len(p.Nodes))) // it may hang, with its connection up: the next call goes to the other
				return err
			default:
				p.good.Store(int32(k))
				p.away.Store(false)
				return err
			}
			if ctx.Err() != nil {
				return ended(ctx, err)
			}
		}
		if time.Since(start) > p.patience {
			p.resting.Store(int64(time.Since(p.start) + p.rest))
			p.away.Store(p.rest > 0)
			return err
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ended(ctx, err)
		}
	}
}

// ended is the context's status with what was last heard.
func ended(ctx context.Context, last error) error {
	return status.Errorf(status.FromContextError(ctx.Err()).Code(), "%v; last answer: %v", ctx.Err(), last)
}

// NewStream opens a stream to the node that answered last; the caller opens another one when it
// ends.
func (p *failover) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return p.Nodes[int(p.good.Load())%len(p.Nodes)].conn.NewStream(ctx, d, method, opts...)
}
