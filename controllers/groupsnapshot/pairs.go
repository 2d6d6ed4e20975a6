package groupsnapshot

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/controllers/snapshot"
	"github.com/gemel-storage/gemel/internal/cut"
)

// Limits of one call to a pair. The first call of a pass is a look, so a pair that hangs costs a
// pass no more than lookLimit.
const (
	lookLimit    = 5 * time.Second
	beginLimit   = 30 * time.Second // it may remove the snapshots of an earlier attempt
	prepareLimit = 2 * time.Minute  // it flushes the members
	cutLimit     = 15 * time.Second
)

// connect groups the snapshots that are placed by their pairs.
func (p *pass) connect(ctx context.Context) error {
	byPair := map[string][]*targetv1.CreateSnapshotRequest{}
	for _, s := range p.luns {
		if at := s.Spec.Placement; at != nil {
			byPair[at.Pair] = append(byPair[at.Pair], &targetv1.CreateSnapshotRequest{Uuid: at.UUID, Name: s.Name, SourceLunUuid: at.SourceUUID, Labels: snapshot.DiskLabels(s)})
		}
	}
	p.group = &cut.Group{UUID: string(p.o.UID)}
	for _, name := range slices.Sorted(maps.Keys(byPair)) {
		c, err := p.Pairs.Client(ctx, name)
		if err != nil {
			return finding.Client(name, err)
		}
		call := &caller{pair: c}
		p.calls = append(p.calls, call)
		p.group.Pairs = append(p.group.Pairs, cut.Pair{Name: name, Client: call, Members: byPair[name]})
	}
	return nil
}

// caller makes the calls to one pair, each with a limit. It is used by one goroutine at a time.
type caller struct {
	pair    pairconn.Pair
	last    *targetv1.GroupSnapshot // the last answer about what the pair has
	holding bool                    // the last attempt came as far as the hold
}

// GetGroupSnapshot implements cut.Client.
func (c *caller) GetGroupSnapshot(ctx context.Context, q *targetv1.GetGroupSnapshotRequest, o ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	return c.answer(ctx, lookLimit, func(ctx context.Context) (*targetv1.GroupSnapshot, error) {
		return c.pair.GetGroupSnapshot(ctx, q, o...)
	})
}

// BeginGroupSnapshot implements cut.Client.
func (c *caller) BeginGroupSnapshot(ctx context.Context, q *targetv1.BeginGroupSnapshotRequest, o ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	c.holding = false
	return c.answer(ctx, beginLimit, func(ctx context.Context) (*targetv1.GroupSnapshot, error) {
		return c.pair.BeginGroupSnapshot(ctx, q, o...)
	})
}

// PrepareGroupSnapshot implements cut.Client.
func (c *caller) PrepareGroupSnapshot(ctx context.Context, q *targetv1.PrepareGroupSnapshotRequest, o ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	return c.answer(ctx, prepareLimit, func(ctx context.Context) (*targetv1.GroupSnapshot, error) {
		return c.pair.PrepareGroupSnapshot(ctx, q, o...)
	})
}

func (c *caller) answer(ctx context.Context, limit time.Duration, f func(context.Context) (*targetv1.GroupSnapshot, error)) (*targetv1.GroupSnapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := f(ctx)
	if err == nil {
		c.last = r
	}
	return r, err
}

// HoldGroupSnapshot implements cut.Client. Its limit is the caller's.
func (c *caller) HoldGroupSnapshot(ctx context.Context, q *targetv1.HoldGroupSnapshotRequest, o ...grpc.CallOption) (*targetv1.HoldGroupSnapshotResponse, error) {
	c.holding = true
	return c.pair.HoldGroupSnapshot(ctx, q, o...)
}

// CutGroupSnapshot implements cut.Client.
func (c *caller) CutGroupSnapshot(ctx context.Context, q *targetv1.CutGroupSnapshotRequest, o ...grpc.CallOption) (*targetv1.CutGroupSnapshotResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, cutLimit)
	defer cancel()
	return c.pair.CutGroupSnapshot(ctx, q, o...)
}

// heldAny reports whether the last attempt came as far as the holds: every pair had answered what
// comes before them, so that the next attempt is worth making at once.
func (p *pass) heldAny() bool {
	return slices.ContainsFunc(p.calls, func(c *caller) bool { return c.holding })
}

// noteTime notes when the snapshots were taken, as the pairs say it: an operator that takes over
// says the same.
func (p *pass) noteTime() {
	for _, c := range p.calls {
		for _, m := range c.last.GetMembers() {
			if t := m.GetSnapshot().GetCreated(); t != nil {
				if at := metav1.NewTime(t.AsTime()); p.takenAt == nil || p.takenAt.Before(&at) {
					p.takenAt = &at
				}
			}
		}
	}
}

// failure is the finding of a failed step. held: the attempt came as far as the holds.
func failure(err error, held bool) error {
	var e *cut.Error
	if !errors.As(err, &e) {
		return err
	}
	f, ok := finding.Of(finding.RPC(e.Pair, e.Step, e.Err))
	if !ok {
		return err
	}
	switch cut.Code(err) {
	case codes.NotFound:
		f.Reason = v1alpha1.ReasonNoSource
		f.Message += ": a source of this group snapshot is gone"
		if held { // the next attempt finds out when it prepares
			f.Reason, f.Retry = v1alpha1.ReasonProgressing, true
		}
	case codes.FailedPrecondition: // the attempt is over, or its hold was broken
		f.Reason, f.Retry = v1alpha1.ReasonProgressing, true
		f.Message += "; the next attempt follows"
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		f.Reason, f.Retry = v1alpha1.ReasonPairDown, true
		f.Message += "; the operator tries again: check the pair with kubectl gemel status"
		if held { // by another snapshot, or by commands that take long
			f.Reason = v1alpha1.ReasonProgressing
		}
	case codes.Unimplemented:
		f.Reason, f.Retry = v1alpha1.ReasonNotSupported, true
		f.Message += "; pair " + e.Pair + " has a node of a release that knows no group snapshots: upgrade its nodes"
	}
	return f
}
