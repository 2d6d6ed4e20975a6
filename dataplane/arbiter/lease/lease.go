// Package lease keeps a pair's record (R2) in one coordination.k8s.io/v1 Lease, so that etcd's
// consensus decides who is a member and nothing of it is rebuilt here. The record is JSON in an
// annotation; who may create the Lease is the operator, a target gets and updates it, no more.
//
// What the API server gives and this package relies on:
//   - A GET of one object without resourceVersion is answered by a quorum read of etcd, not from
//     the watch cache, so it is linearizable. There is no informer here and no cache that answers a
//     read.
//   - An update with metadata.resourceVersion and metadata.uid is carried out only if both still
//     stand, else it ends 409. So one request that is carried out twice, by a hedge, a proxy or a
//     load balancer, takes effect once.
//   - An update that changes nothing is not written and leaves the resourceVersion. Each write
//     therefore carries a token of its own: a successor of the same content bars late writes (R2).
//
// The tokens of the last writes stay on the object. They say, after an answer that was lost or a
// 409 that may be about one's own duplicate, whether a write has landed.
package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Limits and times.
const (
	DefaultTimeout = time.Second            // of one Get or CompareAndSwap, all its requests together
	DefaultHedge   = 250 * time.Millisecond // without an answer for so long, the next API server is asked too
	maxAnswer      = 1 << 20                // bytes of an answer; etcd refuses objects above 1.5 MiB, a Lease has about 2 KiB
)

// Errors beside those of package arbiter. They wrap what the API server said, and leave the outcome
// of a CompareAndSwap unknown except where it says otherwise.
var (
	// ErrNoLease: the Lease itself is not there. Nothing was written, and the record may be lost:
	// unlike a Lease without a record, which is arbiter.ErrNotFound, this fences no node, so that
	// the Lease can be restored.
	ErrNoLease = errors.New("there is no such Lease")
	// ErrDamaged: the annotations are there and cannot be read, or do not agree with each other.
	// Nothing was written.
	ErrDamaged = errors.New("the record in the Lease is damaged")
	// ErrDenied: the API server refuses who is asking (401, 403), or a policy refuses the write
	// (422).
	ErrDenied = errors.New("the API server refuses the request")
	// ErrThrottled: every API server asks to wait (429).
	ErrThrottled = errors.New("the API server asks to wait")
	// ErrSucceeded: the write has landed, and another one after it. Read again.
	ErrSucceeded = errors.New("the record was written, and a later record has replaced it already")
	// ErrUnclear: the API server says 409 and what it shows does not tell whether the write has
	// landed. Read again.
	ErrUnclear = errors.New("it is unknown whether the record was written")
)

// Options of a Client. The zero value of a time means its default.
type Options struct {
	Namespace, Name string // of the Lease
	Cluster, Pair   string // of the record: another one is refused
	Endpoints       []string
	Discover        bool // follow the EndpointSlice of the service "kubernetes": Run does
	Timeout         time.Duration
	Hedge           time.Duration
	Logger          *slog.Logger
}

// Client implements arbiter.Arbiter. It is safe for concurrent use.
type Client struct {
	opt     Options
	pool    *pool
	metrics *metrics
	log     *slog.Logger

	mu   sync.Mutex
	last *object // as last read or written: what an update under its version builds on
}

// New uses the credentials, CA and server of cfg. Beside the server it asks opt.Endpoints. Nothing
// is sent yet.
func New(cfg *rest.Config, opt Options) (*Client, error) {
	if opt.Timeout == 0 {
		opt.Timeout = DefaultTimeout
	}
	if opt.Hedge == 0 {
		opt.Hedge = DefaultHedge
	}
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	p, err := newPool(cfg, opt.Endpoints)
	if err != nil {
		return nil, err
	}
	return &Client{opt: opt, pool: p, metrics: newMetrics(), log: opt.Logger}, nil
}

func (c *Client) path() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + c.opt.Namespace + "/leases/" + c.opt.Name
}

func (c *Client) String() string { return "Lease " + c.opt.Namespace + "/" + c.opt.Name }

// Get implements arbiter.Arbiter. With ErrNotFound, which means that the Lease bears no record, the
// version is that of the Lease.
func (c *Client) Get(ctx context.Context) (pair.Record, string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	o, err := c.read(ctx)
	if err != nil {
		return pair.Record{}, "", err
	}
	rec, err := o.record(c.opt.Cluster, c.opt.Pair)
	if err != nil {
		if !errors.Is(err, arbiter.ErrNotFound) {
			err = fmt.Errorf("%v: %w", c, err)
		}
		return pair.Record{}, o.version(), err
	}
	return rec, o.version(), nil
}

// CompareAndSwap implements arbiter.Arbiter. ErrConflict is returned only if the write has not
// landed and never will.
func (c *Client) CompareAndSwap(ctx context.Context, version string, rec pair.Record) (string, error) {
	if err := rec.Validate(c.opt.Cluster, c.opt.Pair); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	base, err := c.base(ctx, version)
	if err != nil {
		return "", err
	}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:])
	token := hex.EncodeToString(nonce[:])
	body, err := base.successor(&rec, token, time.Now())
	if err != nil {
		return "", fmt.Errorf("%v: %w", c, err)
	}
	a, err := c.do(ctx, http.MethodPut, c.path(), body, func(a *answer) bool {
		return a.object != nil || a.status == http.StatusConflict || a.missing()
	})
	switch {
	case err != nil:
		return "", err
	case a.object != nil && a.object.token() == token:
		c.remember(a.object)
		return a.object.version(), nil
	case a.object != nil:
		return "", fmt.Errorf("%v: %w: the response to an update has another object", c, ErrUnclear)
	case a.status != http.StatusConflict:
		return "", c.noLease()
	}
	return c.afterConflict(ctx, base, token, a.text())
}

// base is the object that an update under version builds on. That it is not read again is no stale
// read: the update is conditional on its resourceVersion. The first record builds on a Lease that
// was seen without one just now.
func (c *Client) base(ctx context.Context, version string) (*object, error) {
	c.mu.Lock()
	o := c.last
	c.mu.Unlock()
	if version != "" && o != nil && o.version() == version {
		return o, nil
	}
	o, err := c.read(ctx)
	switch {
	case err != nil:
		return nil, err
	case version == "" && o.bare():
		return o, nil
	case o.version() != version:
		return nil, arbiter.ErrConflict // nothing was sent
	}
	return o, nil
}

// afterConflict finds out what a 409 is about: another's write, or this one, carried out before
// under another request.
func (c *Client) afterConflict(ctx context.Context, base *object, token, said string) (string, error) {
	o, err := c.read(ctx)
	if err != nil {
		return "", fmt.Errorf("after a 409 (%s): %w", said, err)
	}
	switch {
	case o.token() == token:
		return o.version(), nil
	case o.wrote(token):
		return "", fmt.Errorf("%v: %w", c, ErrSucceeded)
	case o.version() != base.version() && o.uid == base.uid && o.follows(base):
		return "", arbiter.ErrConflict // the resourceVersion has passed: what is still under way ends 409, too
	}
	return "", fmt.Errorf("%v: %w: 409: %s", c, ErrUnclear, said)
}

// read asks for the object: always a quorum read.
func (c *Client) read(ctx context.Context) (*object, error) {
	a, err := c.do(ctx, http.MethodGet, c.path(), nil, func(a *answer) bool { return a.object != nil || a.missing() })
	if err != nil {
		return nil, err
	}
	if a.object == nil {
		return nil, c.noLease()
	}
	c.remember(a.object)
	return a.object, nil
}

func (c *Client) remember(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = o
}

func (c *Client) noLease() error {
	return fmt.Errorf("%v: %w: the operator creates it without a record; if it was deleted, the record is lost: create the Lease with the label %s=%s and see docs/operations.md",
		c, ErrNoLease, LabelPair, c.opt.Pair)
}
