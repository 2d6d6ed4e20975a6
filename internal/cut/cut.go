// Package cut takes group snapshots: snapshots of many LUNs, of several pairs and owners, at one
// instant (docs/decisions/0070). It is the coordinator's part. Everything that it knows it can
// learn again from the pairs, so it keeps nothing: a coordinator that dies is replaced by one that
// begins the next attempt.
package cut

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// HoldTime is how long a pair holds the members' changes at most, from one request to the cut.
const HoldTime = 800 * time.Millisecond

// Client is what a coordinator calls of a pair.
type Client interface {
	BeginGroupSnapshot(context.Context, *targetv1.BeginGroupSnapshotRequest, ...grpc.CallOption) (*targetv1.GroupSnapshot, error)
	PrepareGroupSnapshot(context.Context, *targetv1.PrepareGroupSnapshotRequest, ...grpc.CallOption) (*targetv1.GroupSnapshot, error)
	HoldGroupSnapshot(context.Context, *targetv1.HoldGroupSnapshotRequest, ...grpc.CallOption) (*targetv1.HoldGroupSnapshotResponse, error)
	CutGroupSnapshot(context.Context, *targetv1.CutGroupSnapshotRequest, ...grpc.CallOption) (*targetv1.CutGroupSnapshotResponse, error)
	GetGroupSnapshot(context.Context, *targetv1.GetGroupSnapshotRequest, ...grpc.CallOption) (*targetv1.GroupSnapshot, error)
}

// Pair is a pair's part of a group.
type Pair struct {
	Name    string
	Client  Client
	Members []*targetv1.CreateSnapshotRequest // the same ones in every attempt
}

// Group is a group snapshot.
type Group struct {
	UUID  string
	Pairs []Pair
}

// Error of a step at one pair; its code is that of the call.
type Error struct {
	Pair, Step string
	Err        error
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("pair %s: %s: %s", e.Pair, e.Step, status.Convert(e.Err).Message())
}

// Unwrap implements errors.Unwrap.
func (e *Error) Unwrap() error { return e.Err }

// Standing is what the pairs have of a group, all together.
type Standing struct {
	Attempt uint64 // the highest one that a pair has logged, 0: none
	Final   bool   // a pair has logged that there is none ever after
	// Whole: every pair has every member, cut in one attempt. Such a set becomes complete by
	// itself, or loses members if copies fail. Ready: it is complete.
	Whole, Ready bool
	// Missing and Copying count members.
	Missing, Copying int
}

// Look asks the pairs what they have. Nothing changes.
func (g *Group) Look(ctx context.Context) (Standing, error) {
	answers := make([]*targetv1.GroupSnapshot, len(g.Pairs))
	err := g.each(ctx, "get the group snapshot", func(ctx context.Context, i int) (err error) {
		answers[i], err = g.Pairs[i].Client.GetGroupSnapshot(ctx, &targetv1.GetGroupSnapshotRequest{GroupUuid: g.UUID})
		if status.Code(err) == codes.NotFound {
			answers[i], err = &targetv1.GroupSnapshot{}, nil
		}
		return err
	})
	if err != nil {
		return Standing{}, err
	}
	return g.judge(answers), nil
}

// Begin raises the attempt at every pair, and then judges what they have: no cut of an earlier
// attempt happens any more, so a set that is whole stays so, and one that is not never will be. A
// pair that has logged a higher attempt refuses (FAILED_PRECONDITION): another coordinator has
// taken over.
func (g *Group) Begin(ctx context.Context, attempt uint64) (Standing, error) {
	answers, err := g.begin(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: g.UUID, Attempt: attempt})
	if err != nil {
		return Standing{}, err
	}
	return g.judge(answers), nil
}

func (g *Group) begin(ctx context.Context, q *targetv1.BeginGroupSnapshotRequest) ([]*targetv1.GroupSnapshot, error) {
	answers := make([]*targetv1.GroupSnapshot, len(g.Pairs))
	err := g.each(ctx, "begin an attempt", func(ctx context.Context, i int) (err error) {
		answers[i], err = g.Pairs[i].Client.BeginGroupSnapshot(ctx, q)
		return err
	})
	return answers, err
}

// End removes the group from every pair, for good. What comes late of any attempt is refused.
func (g *Group) End(ctx context.Context, attempt uint64) error {
	_, err := g.begin(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: g.UUID, Attempt: max(attempt, 1), Final: true})
	return err
}

// Discard removes from every pair what earlier attempts have left, and what this one has not cut.
func (g *Group) Discard(ctx context.Context, attempt uint64) error {
	_, err := g.begin(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: g.UUID, Attempt: attempt, Discard: true})
	return err
}

// Cut makes one attempt, which has begun and whose group is not whole. It returns how long changes
// of a member were held at most. After an error nothing is known but that holds end by themselves:
// the next step is to begin the next attempt.
func (g *Group) Cut(ctx context.Context, attempt uint64) (held time.Duration, err error) {
	if err := g.Discard(ctx, attempt); err != nil {
		return 0, err
	}
	err = g.each(ctx, "prepare", func(ctx context.Context, i int) error {
		_, err := g.Pairs[i].Client.PrepareGroupSnapshot(ctx, &targetv1.PrepareGroupSnapshotRequest{GroupUuid: g.UUID, Attempt: attempt, Members: g.Pairs[i].Members})
		return err
	})
	if err != nil {
		return 0, err
	}
	limit, cancel := context.WithTimeout(ctx, HoldTime)
	holds := make([]uint64, len(g.Pairs))
	err = g.each(limit, "hold the members", func(ctx context.Context, i int) error {
		r, err := g.Pairs[i].Client.HoldGroupSnapshot(ctx, &targetv1.HoldGroupSnapshotRequest{GroupUuid: g.UUID, Attempt: attempt, Ttl: durationpb.New(HoldTime)})
		holds[i] = r.GetHold()
		return err
	})
	cancel()
	if err != nil {
		return 0, err
	}
	// Every pair holds its members now. Each cut proves that its hold has lasted since then.
	times := make([]time.Duration, len(g.Pairs))
	err = g.each(ctx, "cut", func(ctx context.Context, i int) error {
		r, err := g.Pairs[i].Client.CutGroupSnapshot(ctx, &targetv1.CutGroupSnapshotRequest{GroupUuid: g.UUID, Attempt: attempt, Hold: holds[i]})
		times[i] = r.GetHeld().AsDuration()
		return err
	})
	for _, t := range times {
		held = max(held, t)
	}
	return held, err
}

// judge puts the answers of all pairs together.
func (g *Group) judge(answers []*targetv1.GroupSnapshot) (s Standing) {
	taken := map[uint64]bool{} // attempts of the members that are cut
	for i, p := range g.Pairs {
		a := answers[i]
		s.Attempt, s.Final = max(s.Attempt, a.Attempt), s.Final || a.Final
		has := map[string]*targetv1.GroupSnapshotMember{}
		for _, m := range a.Members {
			has[m.GetSnapshot().GetUuid()] = m
		}
		for _, want := range p.Members {
			switch m := has[want.Uuid]; {
			case m.GetStage() == targetv1.GroupSnapshotMember_STAGE_COPYING:
				s.Copying++
				taken[m.Snapshot.Attempt] = true
			case m.GetStage() == targetv1.GroupSnapshotMember_STAGE_READY:
				taken[m.Snapshot.Attempt] = true
			default:
				s.Missing++
			}
		}
	}
	s.Whole = s.Missing == 0 && len(taken) == 1
	s.Ready = s.Whole && s.Copying == 0
	return s
}

// each takes a step at all pairs at once. The error is of the first pair that failed, in their
// order, and one that is not only the end of the others' patience before one that is.
func (g *Group) each(ctx context.Context, step string, f func(ctx context.Context, i int) error) error {
	errs := make([]error, len(g.Pairs))
	var wg sync.WaitGroup
	for i := range g.Pairs {
		wg.Go(func() {
			if err := f(ctx, i); err != nil {
				errs[i] = &Error{g.Pairs[i].Name, step, err}
			}
		})
	}
	wg.Wait()
	var late error
	for _, err := range errs {
		switch c := Code(err); {
		case err == nil:
		case c != codes.DeadlineExceeded && c != codes.Canceled:
			return err
		case late == nil:
			late = err
		}
	}
	return late
}

// Code of a failed step, OK without an error.
func Code(err error) codes.Code {
	var e *Error
	if errors.As(err, &e) {
		return status.Code(e.Err)
	}
	return status.Code(err)
}
