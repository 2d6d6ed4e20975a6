package cut

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// calls is the order of what pairs are asked, and what they answer.
type calls struct {
	mu    sync.Mutex
	list  []string
	fails map[string]codes.Code // by call
}

func (c *calls) note(pair, what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, pair+" "+what)
	if code, ok := c.fails[pair+" "+what]; ok {
		return status.Error(code, "injected by the test")
	}
	return nil
}

// script is one pair, which answers with what the test gives it.
type script struct {
	Client
	*calls
	name string
	has  *targetv1.GroupSnapshot
}

func (s *script) BeginGroupSnapshot(_ context.Context, q *targetv1.BeginGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	return s.has, s.note(s.name, fmt.Sprintf("begin %d discard=%v final=%v", q.Attempt, q.Discard, q.Final))
}

func (s *script) PrepareGroupSnapshot(_ context.Context, q *targetv1.PrepareGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	return s.has, s.note(s.name, fmt.Sprintf("prepare %d of %d", q.Attempt, len(q.Members)))
}

func (s *script) HoldGroupSnapshot(_ context.Context, q *targetv1.HoldGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.HoldGroupSnapshotResponse, error) {
	return &targetv1.HoldGroupSnapshotResponse{Hold: uint64(s.name[0])}, s.note(s.name, fmt.Sprintf("hold %d for %v", q.Attempt, q.Ttl.AsDuration()))
}

func (s *script) CutGroupSnapshot(_ context.Context, q *targetv1.CutGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.CutGroupSnapshotResponse, error) {
	held := time.Duration(s.name[0]-'p'+1) * time.Millisecond
	return &targetv1.CutGroupSnapshotResponse{Held: durationpb.New(held)}, s.note(s.name, fmt.Sprintf("cut %d of hold %c", q.Attempt, rune(q.Hold)))
}

func (s *script) GetGroupSnapshot(context.Context, *targetv1.GetGroupSnapshotRequest, ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	return s.has, s.note(s.name, "get")
}

// twoPairs have one and two members.
func twoPairs() (*Group, *calls, []*script) {
	c := &calls{fails: map[string]codes.Code{}}
	scripts := []*script{{calls: c, name: "p", has: &targetv1.GroupSnapshot{}}, {calls: c, name: "q", has: &targetv1.GroupSnapshot{}}}
	return &Group{UUID: "g", Pairs: []Pair{{"p", scripts[0], []*targetv1.CreateSnapshotRequest{{Uuid: "1"}}},
		{"q", scripts[1], []*targetv1.CreateSnapshotRequest{{Uuid: "2"}, {Uuid: "3"}}}}}, c, scripts
}

// No pair is asked for a step before every pair has answered the step before.
func TestEachStepEndsEverywhereBeforeTheNext(t *testing.T) {
	g, c, _ := twoPairs()
	if held, err := g.Cut(t.Context(), 4); err != nil || held != 2*time.Millisecond { // that of the pair that held longest
		t.Fatal(held, err)
	}
	want := [][]string{{"p begin 4 discard=true final=false", "q begin 4 discard=true final=false"}, {"p prepare 4 of 1", "q prepare 4 of 2"},
		{"p hold 4 for 800ms", "q hold 4 for 800ms"}, {"p cut 4 of hold p", "q cut 4 of hold q"}}
	if len(c.list) != 8 {
		t.Fatalf("%q", c.list)
	}
	for i, step := range want {
		got := slices.Sorted(slices.Values(c.list[2*i : 2*i+2]))
		if !slices.Equal(got, step) {
			t.Errorf("step %d: %q", i, got)
		}
	}
}

// A step that fails at one pair ends the attempt, and names pair and step.
func TestStepThatFailsEndsTheAttempt(t *testing.T) {
	for i, call := range []string{"q begin 4 discard=true final=false", "p prepare 4 of 1", "q hold 4 for 800ms", "p cut 4 of hold p"} {
		g, c, _ := twoPairs()
		c.fails[call] = codes.Unavailable
		_, err := g.Cut(t.Context(), 4)
		if Code(err) != codes.Unavailable || !strings.HasPrefix(err.Error(), "pair "+call[:1]+": ") || len(c.list) != 2*i+2 {
			t.Errorf("%s: %v, %q", call, err, c.list)
		}
	}
	g, c, _ := twoPairs()
	c.fails["p hold 4 for 800ms"], c.fails["q hold 4 for 800ms"] = codes.DeadlineExceeded, codes.ResourceExhausted
	if _, err := g.Cut(t.Context(), 4); Code(err) != codes.ResourceExhausted {
		t.Errorf("the reason is lost: %v", err)
	}
}

// What pairs have is a whole set only if each member is there, cut, in one attempt.
func TestJudge(t *testing.T) {
	const empty, copying, ready = targetv1.GroupSnapshotMember_STAGE_EMPTY, targetv1.GroupSnapshotMember_STAGE_COPYING, targetv1.GroupSnapshotMember_STAGE_READY
	m := func(id string, attempt uint64, s targetv1.GroupSnapshotMember_Stage) *targetv1.GroupSnapshotMember {
		return &targetv1.GroupSnapshotMember{Snapshot: &targetv1.Snapshot{Uuid: id, Attempt: attempt}, Stage: s}
	}
	list := func(m ...*targetv1.GroupSnapshotMember) []*targetv1.GroupSnapshotMember { return m }
	for name, c := range map[string]struct {
		p, q []*targetv1.GroupSnapshotMember
		want Standing
	}{
		"nothing":              {nil, nil, Standing{Missing: 3}},
		"complete":             {list(m("1", 2, ready)), list(m("2", 2, ready), m("3", 2, ready)), Standing{Whole: true, Ready: true}},
		"being copied":         {list(m("1", 2, ready)), list(m("2", 2, copying), m("3", 2, ready)), Standing{Whole: true, Copying: 1}},
		"cut at one pair":      {list(m("1", 2, copying)), list(m("2", 2, empty), m("3", 2, empty)), Standing{Missing: 2, Copying: 1}},
		"one is lost":          {list(m("1", 2, ready)), list(m("3", 2, ready)), Standing{Missing: 1}},
		"of two attempts":      {list(m("1", 2, ready)), list(m("2", 3, ready), m("3", 3, ready)), Standing{}},
		"another in its place": {list(m("7", 2, ready)), list(m("2", 2, ready), m("3", 2, ready)), Standing{Missing: 1}},
	} {
		g, _, scripts := twoPairs()
		scripts[0].has, scripts[1].has = &targetv1.GroupSnapshot{Attempt: 2, Members: c.p}, &targetv1.GroupSnapshot{Attempt: 5, Members: c.q}
		c.want.Attempt = 5
		for what, f := range map[string]func() (Standing, error){"look": func() (Standing, error) { return g.Look(t.Context()) },
			"begin": func() (Standing, error) { return g.Begin(t.Context(), 6) }} {
			if got, err := f(); err != nil || got != c.want {
				t.Errorf("%s, %s: %+v, %v", name, what, got, err)
			}
		}
	}
}

// A pair that knows nothing of a group has nothing of it; the last word is said at every pair.
func TestLookAndEnd(t *testing.T) {
	g, c, scripts := twoPairs()
	c.fails["q get"] = codes.NotFound
	scripts[0].has.Attempt = 3
	if s, err := g.Look(t.Context()); err != nil || s.Attempt != 3 || s.Whole {
		t.Errorf("%+v, %v", s, err)
	}
	c.list = nil
	if err := g.End(t.Context(), 0); err != nil || len(c.list) != 2 || c.list[0][2:] != "begin 1 discard=false final=true" {
		t.Errorf("%v, %q", err, c.list)
	}
}
