package pairclient

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// frozen answers nothing while it is frozen, and takes long for one kind of call.
type frozen struct {
	targetv1.UnimplementedTargetServiceServer
	name string

	mu   sync.Mutex
	wake chan struct{} // nil: it is awake
	busy time.Duration // of UnmapHost
}

func (n *frozen) answers(ctx context.Context) error {
	n.mu.Lock()
	wake := n.wake
	n.mu.Unlock()
	if wake == nil {
		return nil
	}
	select {
	case <-wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *frozen) GetStatus(ctx context.Context, _ *targetv1.GetStatusRequest) (*targetv1.Status, error) {
	return &targetv1.Status{Node: n.name}, n.answers(ctx)
}

func (n *frozen) GetLUN(ctx context.Context, _ *targetv1.GetLUNRequest) (*targetv1.LUN, error) {
	return &targetv1.LUN{Name: n.name}, n.answers(ctx)
}

func (n *frozen) UnmapHost(ctx context.Context, _ *targetv1.UnmapHostRequest) (*targetv1.UnmapHostResponse, error) {
	select {
	case <-time.After(n.busy):
	case <-ctx.Done():
	}
	return &targetv1.UnmapHostResponse{}, n.answers(ctx)
}

func (n *frozen) freeze() (thaw func()) {
	wake := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wake = wake
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.wake = nil
		close(wake)
	}
}

func pairOf(t *testing.T, a, b *frozen) *Client {
	t.Helper()
	p, err := New(Config{Endpoints: []string{serveAny(t, a), serveAny(t, b)}, Patience: 3 * time.Second, Rest: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// A node that is frozen keeps its connection. A call goes to the other node all the same.
func TestAFrozenNodeIsLeft(t *testing.T) {
	a, b := &frozen{name: "a"}, &frozen{name: "b"}
	p := pairOf(t, a, b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if l, err := p.GetLUN(ctx, &targetv1.GetLUNRequest{}); err != nil || l.Name != "a" {
		t.Fatalf("%v, %v", l, err)
	}
	thaw := a.freeze()
	defer thaw()
	begun := time.Now()
	l, err := p.GetLUN(ctx, &targetv1.GetLUNRequest{})
	if took := time.Since(begun); err != nil || l.Name != "b" || took > probeAfter+probeTime+10*time.Second {
		t.Errorf("%v, %v after %v", l, err, took)
	}
}

// A pair that is frozen is away: after the first calls others fail at once, and when it is back it
// is found again.
func TestAFrozenPairIsAway(t *testing.T) {
	a, b := &frozen{name: "a"}, &frozen{name: "b"}
	p := pairOf(t, a, b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	thawA, thawB := a.freeze(), b.freeze()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			_, err := p.GetLUN(ctx, &targetv1.GetLUNRequest{})
			if status.Code(err) != codes.Unavailable {
				t.Errorf("a call when it freezes: %v", err)
			}
		})
	}
	all.Wait()
	begun := time.Now()
	_, err := p.GetLUN(ctx, &targetv1.GetLUNRequest{})
	if took := time.Since(begun); status.Code(err) != codes.Unavailable || took > time.Second {
		t.Errorf("a call after that: %v after %v", err, took)
	}
	thawA()
	thawB()
	for {
		_, err := p.GetLUN(ctx, &targetv1.GetLUNRequest{})
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("it is back, and calls fail: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A call that takes long at a node that answers is not ended.
func TestALongCallIsNotSilence(t *testing.T) {
	a, b := &frozen{name: "a", busy: 2*probeAfter + time.Second}, &frozen{name: "b"}
	p := pairOf(t, a, b)
	if _, err := p.UnmapHost(t.Context(), &targetv1.UnmapHostRequest{}); err != nil {
		t.Error(err)
	}
	if n := p.good.Load(); n != 0 {
		t.Errorf("it went to node %d", n)
	}
}

// A node that was found silent is not called for a moment, by calls of that node alone either.
func TestASilentNodeIsNotCalled(t *testing.T) {
	a, b := &frozen{name: "a"}, &frozen{name: "b"}
	p := pairOf(t, a, b)
	defer a.freeze()()
	ctx, cancel := context.WithTimeout(t.Context(), probeTime)
	defer cancel()
	if _, err := p.Nodes[0].GetStatus(ctx, &targetv1.GetStatusRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Fatal(err)
	}
	begun := time.Now()
	_, err := p.Nodes[0].GetStatus(t.Context(), &targetv1.GetStatusRequest{})
	if took := time.Since(begun); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "may be frozen") || took > time.Second {
		t.Errorf("%v after %v", err, took)
	}
}
