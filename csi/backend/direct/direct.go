// Package direct is a backend of one pair over the control API of both nodes. It keeps no state:
// IDs derive from names, and everything else is read from the pair.
//
// A volume's ID is the UUID of its LUN, without the pair: it is globally unique, and a volume may
// move to another pair.
package direct

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// Config of a Backend.
type Config = pairclient.Config

// Backend implements backend.Backend.
type Backend struct {
	pair *pairclient.Client
}

var _ backend.Backend = (*Backend)(nil)

// New connects lazily.
func New(c Config) (*Backend, error) {
	p, err := pairclient.New(c)
	if err != nil {
		return nil, fmt.Errorf("direct backend: %w", err)
	}
	return &Backend{pair: p}, nil
}

// Close ends the connections.
func (b *Backend) Close() error { return b.pair.Close() }

// NeedsCluster implements backend.Backend: there is one pair, in no StorageCluster.
func (b *Backend) NeedsCluster() bool { return false }

// call calls the pair and converts its error.
func call[Q, R any](ctx context.Context, b *Backend, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...grpc.CallOption) (R, error), req Q) (R, error) {
	r, err := f(b.pair, ctx, req)
	return r, convert(what, err)
}

// convert converts a status to an error of package backend and keeps the text.
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
	case codes.Unimplemented:
		class = backend.ErrUnsupported
	case codes.ResourceExhausted:
		class = backend.ErrExhausted
	case codes.Unavailable, codes.Aborted: // a copy is not complete yet
		class = backend.ErrUnavailable
	case codes.DeadlineExceeded, codes.Canceled:
		class = backend.ErrTimeout
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %s", what, class, status.Convert(err).Message())
}

// space is the UUID namespace (RFC 9562 version 5) of the CSI driver's IDs.
var space = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://gemel.storage/csi"))

// VolumeID implements backend.Backend.
func (b *Backend) VolumeID(name string) string {
	return uuid.NewSHA1(space, []byte("volume/"+name)).String()
}

// SnapshotID implements backend.Backend.
func (b *Backend) SnapshotID(name string) string {
	return uuid.NewSHA1(space, []byte("snapshot/"+name)).String()
}

// ours reports whether this driver can have created an ID.
func ours(id string) bool {
	u, err := uuid.Parse(id)
	return err == nil && u.String() == id
}
