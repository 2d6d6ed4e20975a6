// Package control is the control API of one node: the gRPC service of api/dataplane/v1. It checks
// requests, names the field and the fix of what it refuses, and translates between protobuf and
// package meta. What a request does is the Node's part.
package control

import (
	"context"
	"crypto/tls"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/grpcerr"
)

// ErrUnavailable: this node cannot change the pair's metadata now; the other one may.
var ErrUnavailable = errors.New("this node cannot do this now: try again, or use the other node")

// ErrCopying: a copy is not complete yet. The request is repeated, which is safe.
var ErrCopying = errors.New("the copy is not complete yet: repeat the request")

// ErrUnsupported: the other node is of a release that cannot carry this out. It becomes the answer
// that such a release gives itself, so that a caller has one case to handle.
var ErrUnsupported = errors.New("a node of the pair is of a release that does not support this")

// maxRequest is the largest request in bytes.
const maxRequest = 4 << 20

// Node is the node whose control API is served. Errors of its methods wrap ErrUnavailable, those of
// package meta, or those of pair.Machine.Force; others become codes.Internal.
type Node interface {
	// View is the node's standing in the pair.
	View() pair.View
	// Status reports the standing in full, capacities included, for which it may ask the peer.
	Status(ctx context.Context) *targetv1.Status
	// Sessions lists the iSCSI sessions at this node, discovery included.
	Sessions() []iscsi.SessionInfo
	// ReadMetadata calls f with the metadata that this node has applied. f may keep the objects in
	// it, which never change, but not the state.
	ReadMetadata(f func(*meta.State))
	// Usage is the present owner of a LUN, "" if there is none, and the bytes that its file
	// occupies, 0 if unknown.
	Usage(uuid string) (owner string, allocated uint64)
	// Process identifies the process of the node, and says how long its machine has run.
	Process() (incarnation uint64, since time.Duration)
	// Work is the present owner of a LUN, "" if there is none, and what hosts have done with it at
	// this node since the process started.
	Work(uuid string) (owner string, work count.Totals)

	// Change puts an entry into the pair's log and waits for its outcome on every member.
	Change(ctx context.Context, e *meta.Entry) (meta.Outcome, error)
	// CreateLUN, ModifyLUN and CreateSnapshot do their work on both nodes, or undo it (R14).
	CreateLUN(ctx context.Context, l meta.LUN) error
	ModifyLUN(ctx context.Context, m meta.Modify) error
	CreateSnapshot(ctx context.Context, s meta.Snapshot) error
	// BeginGroup raises the attempt of a group snapshot, and removes its members if discard is set
	// or none comes ever after; PrepareGroup makes the members of the last attempt; HoldGroup holds
	// their commands for at most ttl, and names that hold; CutGroup marks all of them, and says how
	// long they were held.
	BeginGroup(ctx context.Context, e meta.BeginGroup, discard bool) error
	PrepareGroup(ctx context.Context, members []meta.Snapshot) error
	HoldGroup(ctx context.Context, group string, attempt uint64, ttl time.Duration) (hold uint64, err error)
	CutGroup(ctx context.Context, group string, attempt, hold uint64) (held time.Duration, err error)
	// UnmapHost returns when nothing of the host, of all hosts if it is empty, can happen to the
	// LUN any more (R11c).
	UnmapHost(ctx context.Context, lun, host string) error
	// Transfer moves LUNs, TransferAll all of them, to a node, which is their home from then on,
	// and keeps them there for as long as hold says.
	Transfer(ctx context.Context, uuids []string, to pair.Node, hold time.Duration) (Transferred, error)
	TransferAll(ctx context.Context, to pair.Node, hold time.Duration) (Transferred, error)
	// Drain moves every LUN away from a node and lets none move to it for so long; 0 ends it.
	Drain(ctx context.Context, node pair.Node, d time.Duration, reason string) (moved int, pause time.Duration, err error)
	// DrainMember has this node move everything away from a member of one of its backing volumes,
	// or ends that.
	DrainMember(ctx context.Context, volume, member string, on bool) error
	// GetTiering says what lies on which tier here, and how a LUN is used, unless lun is empty.
	GetTiering(lun string) (*targetv1.GetTieringResponse, error)
	// SetPolicy says how the pair decides who owns what.
	SetPolicy(ctx context.Context, p meta.Policy) error
	// Scrub begins a scrub, or answers with the one that is under way. The request has been
	// checked.
	Scrub(ctx context.Context, req *targetv1.ScrubRequest) (*targetv1.ScrubResponse, error)
	// Force makes a lone node a member although writes may be lost (R8).
	Force(epoch uint64) error
}

// Transferred is what a transfer has done.
type Transferred struct {
	Moved     int
	Pause     time.Duration // for which commands were held, the longest (R10)
	HeldUntil time.Time     // zero: it does not hold
}

// Config says what never changes while the node runs.
type Config struct {
	Self      pair.Node
	TargetIQN string
	Portals   []iscsi.Portal // of both nodes; the tag is that of the target port group
	Events    *Events
	TLS       *tls.Config     // nil: no TLS, for loopback only
	Done      <-chan struct{} // closed when the node stops: it ends what is streamed
}

// server is the gRPC service.
type server struct {
	targetv1.UnimplementedTargetServiceServer
	cfg Config
	n   Node
}

// NewServer is a gRPC server with the control API of n. The caller runs Serve and Stop.
func NewServer(cfg Config, n Node) *grpc.Server {
	opts := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxRequest)}
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s := grpc.NewServer(opts...)
	targetv1.RegisterTargetServiceServer(s, &server{cfg: cfg, n: n})
	return s
}

// errorCodes are the codes of the control API; the text of an error is for people.
var errorCodes = []grpcerr.Code{
	{Err: meta.ErrNotFound, Code: codes.NotFound},
	{Err: meta.ErrExists, Code: codes.AlreadyExists},
	{Err: meta.ErrInUse, Code: codes.FailedPrecondition},
	{Err: meta.ErrInvalid, Code: codes.InvalidArgument},
	{Err: meta.ErrAborted, Code: codes.FailedPrecondition},
	{Err: meta.ErrExhausted, Code: codes.ResourceExhausted},
	{Err: meta.ErrNotReady, Code: codes.Unavailable},
	{Err: ErrUnavailable, Code: codes.Unavailable},
	{Err: ErrCopying, Code: codes.Aborted},
	{Err: ErrUnsupported, Code: codes.Unimplemented},
	{Err: pair.ErrForceState, Code: codes.FailedPrecondition},
	{Err: pair.ErrForceEpoch, Code: codes.FailedPrecondition},
	{Err: pair.ErrForceAlive, Code: codes.FailedPrecondition},
}

func grpcError(err error) error { return grpcerr.Status(err, errorCodes) }

// member refuses calls that a node outside the pair would answer from old metadata.
func (c *server) member() error {
	v := c.n.View()
	if v.Phase == pair.Paired || v.Phase == pair.Alone {
		return nil
	}
	return status.Errorf(codes.Unavailable, "node %s is %s: %s: use the other node", c.cfg.Self, v.Phase, v.Reason)
}

// Portals of both nodes as the control API has them.
func Portals(list []iscsi.Portal) (out []*targetv1.Portal) {
	for _, p := range list {
		out = append(out, &targetv1.Portal{Node: pair.Node(p.Tag - 1).String(), Address: p.Address, GroupTag: uint32(p.Tag)})
	}
	return out
}
