package objects

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// faultyPairs is between the operator and the pairs: at the n-th call that changes something, the
// operator dies from the view of the pair, before or after the call has arrived.
type faultyPairs struct {
	pairconn.Pairs
	mu     sync.Mutex
	left   int
	landed bool
	down   bool
}

func (f *faultyPairs) arm(n int, landed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.landed, f.down = n, landed, false
}

func (f *faultyPairs) crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down
}

func (f *faultyPairs) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.down = 0, false
}

func (f *faultyPairs) Client(ctx context.Context, name string) (pairconn.Pair, error) {
	p, err := f.Pairs.Client(ctx, name)
	if err != nil {
		return nil, err
	}
	return &faultyPair{p, f}, nil
}

// next reports whether a call is carried out, and whether it is answered.
func (f *faultyPairs) next(changes bool) (carry, answer bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return false, false
	}
	if changes && f.left > 0 {
		if f.left--; f.left == 0 {
			f.down = true
			return f.landed, false
		}
	}
	return true, true
}

type faultyPair struct {
	pairconn.Pair
	f *faultyPairs
}

var errCrash = status.Error(codes.Unavailable, "this process is dead")

func faulty[Q, R any](ctx context.Context, p *faultyPair, changes bool, call func(context.Context, *Q, ...grpc.CallOption) (*R, error), req *Q) (*R, error) {
	carry, answer := p.f.next(changes)
	if !carry {
		return nil, errCrash
	}
	r, err := call(ctx, req)
	if !answer {
		return nil, errCrash
	}
	return r, err
}

func (p *faultyPair) CreateLUN(ctx context.Context, req *targetv1.CreateLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	return faulty(ctx, p, true, p.Pair.CreateLUN, req)
}

func (p *faultyPair) DeleteLUN(ctx context.Context, req *targetv1.DeleteLUNRequest, _ ...grpc.CallOption) (*targetv1.DeleteLUNResponse, error) {
	return faulty(ctx, p, true, p.Pair.DeleteLUN, req)
}

func (p *faultyPair) ExpandLUN(ctx context.Context, req *targetv1.ExpandLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	return faulty(ctx, p, true, p.Pair.ExpandLUN, req)
}

func (p *faultyPair) GetLUN(ctx context.Context, req *targetv1.GetLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	return faulty(ctx, p, false, p.Pair.GetLUN, req)
}

func (p *faultyPair) MapHost(ctx context.Context, req *targetv1.MapHostRequest, _ ...grpc.CallOption) (*targetv1.Mapping, error) {
	return faulty(ctx, p, true, p.Pair.MapHost, req)
}

func (p *faultyPair) UnmapHost(ctx context.Context, req *targetv1.UnmapHostRequest, _ ...grpc.CallOption) (*targetv1.UnmapHostResponse, error) {
	return faulty(ctx, p, true, p.Pair.UnmapHost, req)
}

func (p *faultyPair) CreateSnapshot(ctx context.Context, req *targetv1.CreateSnapshotRequest, _ ...grpc.CallOption) (*targetv1.Snapshot, error) {
	return faulty(ctx, p, true, p.Pair.CreateSnapshot, req)
}

func (p *faultyPair) DeleteSnapshot(ctx context.Context, req *targetv1.DeleteSnapshotRequest, _ ...grpc.CallOption) (*targetv1.DeleteSnapshotResponse, error) {
	return faulty(ctx, p, true, p.Pair.DeleteSnapshot, req)
}

func (p *faultyPair) ListSnapshots(ctx context.Context, req *targetv1.ListSnapshotsRequest, _ ...grpc.CallOption) (*targetv1.ListSnapshotsResponse, error) {
	return faulty(ctx, p, false, p.Pair.ListSnapshots, req)
}
