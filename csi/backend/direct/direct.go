// Package direct is a backend that talks straight to one pair over the control API of both nodes. It keeps no state:
// ids derive from names, and everything else is asked of the pair.
//
// A volume's id is the LUN's uuid, plain: it is unique beyond the pair, and where a volume lives may change.
package direct

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// Config of a Backend.
type Config struct {
	Endpoints []string      // host:port of the control API of each node
	TLS       *tls.Config   // nil: without, for loopback only
	Patience  time.Duration // how long a call is tried while no node takes it; default 20 s
}

// Backend implements backend.Backend.
type Backend struct {
	cfg   Config
	nodes []node
	good  atomic.Int32 // the node that answered last
}

type node struct {
	address string
	conn    *grpc.ClientConn
	client  targetv1.TargetServiceClient
}

var _ backend.Backend = (*Backend)(nil)

// retryInterval is between two rounds over all nodes.
const retryInterval = 200 * time.Millisecond

// silence is after how long an unanswered TCP segment ends a connection: a node that lost its power sends no reset.
const silence = 5 * time.Second

// New connects lazily.
func New(c Config) (*Backend, error) {
	if len(c.Endpoints) == 0 || len(c.Endpoints) > 8 {
		return nil, fmt.Errorf("direct backend: %d endpoints, want 1..8: the control address of each node of the pair", len(c.Endpoints))
	}
	if c.Patience < 0 {
		return nil, fmt.Errorf("direct backend: patience %v is negative", c.Patience)
	}
	if c.Patience == 0 {
		c.Patience = 20 * time.Second
	}
	creds := insecure.NewCredentials()
	if c.TLS != nil {
		creds = credentials.NewTLS(c.TLS)
	}
	b := &Backend{cfg: c}
	for _, e := range c.Endpoints {
		host, _, err := net.SplitHostPort(e)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("direct backend: endpoint %q: %w", e, err), b.Close())
		}
		if ip := net.ParseIP(host); c.TLS == nil && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, errors.Join(fmt.Errorf("direct backend: endpoint %q: without certificates only loopback addresses are allowed", e), b.Close())
		}
		conn, err := grpc.NewClient("passthrough:///"+e, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(dial),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second,
				Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("direct backend: endpoint %q: %w", e, err), b.Close())
		}
		b.nodes = append(b.nodes, node{e, conn, targetv1.NewTargetServiceClient(conn)})
	}
	return b, nil
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

// Close ends the connections.
func (b *Backend) Close() error {
	var errs []error
	for _, n := range b.nodes {
		errs = append(errs, n.conn.Close())
	}
	return errors.Join(errs...)
}

// call asks one node and, while the answer is that it can not now, the others, until the patience is over. That is
// safe since every call of the control API is idempotent.
func call[Q, R any](ctx context.Context, b *Backend, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...grpc.CallOption) (R, error), q Q) (R, error) {
	first := int(b.good.Load())
	var r R
	var err error
	for start := time.Now(); ; {
		for i := range b.nodes {
			k := (first + i) % len(b.nodes)
			r, err = f(b.nodes[k].client, ctx, q)
			if status.Code(err) != codes.Unavailable {
				b.good.Store(int32(k))
				return r, convert(what, err)
			}
			err = fmt.Errorf("%s: %w", b.nodes[k].address, err)
			if ctx.Err() != nil {
				return r, fmt.Errorf("%s: %w: %w", what, backend.ErrTimeout, err)
			}
		}
		if time.Since(start) > b.cfg.Patience {
			return r, fmt.Errorf("%s: %w: %w", what, backend.ErrUnavailable, err)
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return r, fmt.Errorf("%s: %w: %w", what, backend.ErrTimeout, err)
		}
	}
}

// convert gives a status its sentinel and keeps the text.
func convert(what string, err error) error {
	if err == nil {
		return nil
	}
	var class error
	switch status.Code(err) {
	case codes.NotFound:
		class = backend.ErrNotFound
	case codes.AlreadyExists:
		class = backend.ErrExists
	case codes.FailedPrecondition:
		class = backend.ErrInUse
	case codes.InvalidArgument:
		class = backend.ErrInvalid
	case codes.ResourceExhausted:
		class = backend.ErrExhausted
	case codes.Unavailable:
		class = backend.ErrUnavailable
	case codes.DeadlineExceeded, codes.Canceled:
		class = backend.ErrTimeout
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %s", what, class, status.Convert(err).Message())
}

// space is the uuid namespace (RFC 9562 version 5) of everything that the CSI driver names.
var space = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://gemel.storage/csi"))

// VolumeID implements backend.Backend.
func (b *Backend) VolumeID(name string) string {
	return uuid.NewSHA1(space, []byte("volume/"+name)).String()
}

// SnapshotID implements backend.Backend.
func (b *Backend) SnapshotID(name string) string {
	return uuid.NewSHA1(space, []byte("snapshot/"+name)).String()
}

// ours tells ids that this driver can have given out.
func ours(id string) bool {
	u, err := uuid.Parse(id)
	return err == nil && u.String() == id
}
