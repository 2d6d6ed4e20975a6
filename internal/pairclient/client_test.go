package pairclient

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// node answers GetStatus with a code, or with its name.
type node struct {
	targetv1.UnimplementedTargetServiceServer
	name string
	code codes.Code
	hang bool
	back *atomic.Bool // if it is set, code counts no longer
}

func (n *node) GetStatus(ctx context.Context, _ *targetv1.GetStatusRequest) (*targetv1.Status, error) {
	if n.hang {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err() // an answer could overtake the caller's own clock
	}
	if n.code != codes.OK && (n.back == nil || !n.back.Load()) {
		return nil, status.Error(n.code, n.name+" says so")
	}
	return &targetv1.Status{Node: n.name}, nil
}

func serve(t *testing.T, n *node) string { return serveAny(t, n) }

func serveAny(t *testing.T, n targetv1.TargetServiceServer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	targetv1.RegisterTargetServiceServer(s, n)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func TestTheOtherNodeIsAsked(t *testing.T) {
	ask := &targetv1.GetStatusRequest{}
	for name, c := range map[string]struct {
		a, b     node
		limit    time.Duration
		want     codes.Code
		answered string
	}{
		"both":              {node{}, node{}, time.Minute, codes.OK, "a"},
		"first cannot":      {node{code: codes.Unavailable}, node{}, time.Minute, codes.OK, "b"},
		"first refuses":     {node{code: codes.NotFound}, node{}, time.Minute, codes.NotFound, ""},
		"none can":          {node{code: codes.Unavailable}, node{code: codes.Unavailable}, time.Minute, codes.Unavailable, ""},
		"no time to wait":   {node{code: codes.Unavailable}, node{code: codes.Unavailable}, 50 * time.Millisecond, codes.DeadlineExceeded, ""},
		"first does hang":   {node{hang: true}, node{}, 100 * time.Millisecond, codes.DeadlineExceeded, ""},
		"second is refused": {node{code: codes.Unavailable}, node{code: codes.Internal}, time.Minute, codes.Internal, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.a.name, c.b.name = "a", "b"
			p, err := New(Config{Endpoints: []string{serve(t, &c.a), serve(t, &c.b)}, Patience: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), c.limit)
			defer cancel()
			r, err := p.GetStatus(ctx, ask)
			if status.Code(err) != c.want || r.GetNode() != c.answered {
				t.Fatalf("%v, %v", r, err)
			}
			if c.want == codes.Unavailable && !strings.Contains(err.Error(), p.Nodes[1].Address) {
				t.Errorf("%v does not name the node", err)
			}
			if c.a.hang { // the next call does not wait for it again
				if r, err := p.GetStatus(t.Context(), ask); err != nil || r.Node != "b" {
					t.Errorf("%v, %v", r, err)
				}
			}
		})
	}
}

// While a pair is away one call at a time tries it, and the others do not wait beside that call;
// when it is back, all get through.
func TestOneCallTriesAPairThatIsAway(t *testing.T) {
	n := &node{name: "a", code: codes.Unavailable, back: &atomic.Bool{}}
	p, err := New(Config{Endpoints: []string{serve(t, n)}, Patience: time.Second, Rest: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	ask := &targetv1.GetStatusRequest{}
	if _, err := p.GetStatus(t.Context(), ask); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond) // the rest
	began := time.Now()
	tried := make(chan struct{}, 20)
	var quick atomic.Int32
	for range cap(tried) {
		go func() {
			_, err := p.GetStatus(t.Context(), ask)
			if status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "another call is trying") && time.Since(began) < 900*time.Millisecond {
				quick.Add(1)
			}
			tried <- struct{}{}
		}()
	}
	for range cap(tried) {
		<-tried
	}
	if got := quick.Load(); got < int32(cap(tried))-1 {
		t.Errorf("%d of %d calls failed at once", got, cap(tried))
	}
	n.back.Store(true)
	for began := time.Now(); ; {
		_, err := p.GetStatus(t.Context(), ask)
		if err == nil {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal(err)
		}
	}
	for range 5 {
		if _, err := p.GetStatus(t.Context(), ask); err != nil {
			t.Fatal(err)
		}
	}
}

// After a call that no node took, the next ones fail at once for a moment; then the pair is asked
// again.
func TestRestAfterACallThatNoNodeTook(t *testing.T) {
	n := &node{name: "a", code: codes.Unavailable}
	p, err := New(Config{Endpoints: []string{serve(t, n)}, Patience: 100 * time.Millisecond, Rest: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	ask := &targetv1.GetStatusRequest{}
	_, first := p.GetStatus(t.Context(), ask)
	began := time.Now()
	_, second := p.GetStatus(t.Context(), ask)
	if status.Code(first) != codes.Unavailable || status.Code(second) != codes.Unavailable || !strings.Contains(second.Error(), "no node answered the last call") || time.Since(began) > 90*time.Millisecond {
		t.Fatal(first, second, time.Since(began))
	}
	for time.Since(began) < 10*time.Second {
		if _, err := p.GetStatus(t.Context(), ask); err != nil && !strings.Contains(err.Error(), "no node answered the last call") {
			return // it was asked
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("never asked again")
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{}, {Endpoints: []string{"nowhere"}}, {Endpoints: []string{"192.0.2.1:1"}}, {Endpoints: []string{"127.0.0.1:1"}, Patience: -1}} {
		if p, err := New(c); err == nil {
			_ = p.Close()
			t.Errorf("%+v was taken", c)
		}
	}
}
