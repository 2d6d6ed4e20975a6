package pairclient

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// A process that is frozen keeps its connections: the kernel acknowledges what it is sent, and
// no answer comes. Some calls take long at a node that is well (a fence waits for the commands of a
// host), so that a long call alone tells nothing. While a call waits, the node is asked for its
// status, which it always answers at once; if it does not, it is silent, and every call to it ends.

const (
	// probeAfter is how long nothing was heard of a node when it is asked for its status.
	probeAfter = 3 * time.Second
	// probeTime is how long it has for the answer.
	probeTime = 3 * time.Second
	// quietTime is how long no call goes to a node that was found silent.
	quietTime = 2 * time.Second
)

var errSilent = errors.New("the node accepts calls and answers none, not even for its status: its process may be frozen")

// pulse is what is known of whether a node answers.
type pulse struct {
	node  targetv1.TargetServiceClient
	start time.Time
	heard atomic.Int64 // when it last answered, since start
	quiet atomic.Int64 // until when no call goes to it, since start

	probing sync.Mutex
}

func (p *pulse) now() int64 { return int64(time.Since(p.start)) }

// silent reports whether the node answers nothing. One call at a time asks it for its status.
func (p *pulse) silent(ctx context.Context) bool {
	p.probing.Lock()
	defer p.probing.Unlock()
	switch now := p.now(); {
	case now < p.quiet.Load():
		return true
	case time.Duration(now-p.heard.Load()) < probeAfter:
		return false
	}
	ask, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	begun := p.now()
	_, err := p.node.GetStatus(ask, &targetv1.GetStatusRequest{})
	switch {
	case ctx.Err() != nil: // the call that asks has ended
		return false
	case status.Code(err) == codes.DeadlineExceeded && time.Duration(p.now()-begun) < probeTime-probeTime/10:
		return false // it is about to end: its own deadline came first
	case status.Code(err) == codes.DeadlineExceeded:
		p.quiet.Store(p.now() + int64(quietTime))
		return true
	}
	p.heard.Store(p.now()) // or its connection has ended, which ends the call
	return false
}

// watchedConn is a connection to one node.
type watchedConn struct {
	*grpc.ClientConn
	pulse *pulse
}

// Invoke is a call of the node. UNAVAILABLE: it was not taken, or the node is silent.
func (c *watchedConn) Invoke(ctx context.Context, method string, q, r any, opts ...grpc.CallOption) error {
	p := c.pulse
	if p.now() < p.quiet.Load() {
		return status.Error(codes.Unavailable, errSilent.Error())
	}
	begun := p.now()
	call, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for t := time.NewTimer(probeAfter); ; t.Reset(probeAfter) {
			select {
			case <-call.Done():
				t.Stop()
				return
			case <-t.C:
			}
			if p.silent(call) {
				cancel(errSilent)
			}
		}
	})
	err := c.ClientConn.Invoke(call, method, q, r, opts...)
	silent := errors.Is(context.Cause(call), errSilent)
	cancel(nil)
	watching.Wait()
	switch code := status.Code(err); {
	case silent && ctx.Err() == nil && code == codes.Canceled:
		return status.Error(codes.Unavailable, errSilent.Error())
	case code == codes.DeadlineExceeded:
		if took := time.Duration(p.now() - begun); method == targetv1.TargetService_GetStatus_FullMethodName && took >= probeTime-probeTime/10 {
			p.quiet.Store(p.now() + int64(quietTime)) // as a probe
		}
	case code != codes.Unavailable && code != codes.Canceled:
		p.heard.Store(p.now())
		p.quiet.Store(0)
	}
	return err
}
