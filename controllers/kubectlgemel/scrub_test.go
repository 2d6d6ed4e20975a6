package kubectlgemel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// scrubbed is a pair whose nodes each report their share of a scrub; answer is the response to a
// request.
type scrubbed struct {
	asked  []*targetv1.ScrubRequest
	answer *targetv1.ScrubResponse
	err    error
	down   map[string]bool
	looks  int
	share  func(look int, node string) *targetv1.Scrub
	opened int // open connections
}

type scrubbedNode struct {
	targetv1.TargetServiceClient
	s    *scrubbed
	node string
}

func (n *scrubbedNode) Scrub(_ context.Context, q *targetv1.ScrubRequest, _ ...grpc.CallOption) (*targetv1.ScrubResponse, error) {
	n.s.asked = append(n.s.asked, q)
	return n.s.answer, n.s.err
}

func (n *scrubbedNode) GetStatus(context.Context, *targetv1.GetStatusRequest, ...grpc.CallOption) (*targetv1.Status, error) {
	if n.node == "a" {
		n.s.looks++
	}
	return &targetv1.Status{Scrub: n.s.share(n.s.looks, n.node)}, nil
}

func (s *scrubbed) connect(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, func(), error) {
	if s.down[node] {
		return nil, nil, errors.New("it is down")
	}
	s.opened++
	return &scrubbedNode{s: s, node: node}, func() { s.opened-- }, nil
}

func (s *scrubbed) run(t *testing.T, c *Scrub, names ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c.Client, c.Control, c.Out, c.Every = clientOf(world()), s.connect, &out, time.Millisecond
	err := c.Run(t.Context(), names...)
	if s.opened != 0 {
		t.Errorf("%d connections are still open", s.opened)
	}
	return out.String(), err
}

const gib = 1 << 30

// shares of a scrub of two halves, after each quarter.
func shares(look int, node string) *targetv1.Scrub {
	x := &targetv1.Scrub{Id: "x", Node: node, TotalBytes: 4 * gib, DoneBytes: uint64(min(look, 4)) * gib, Active: look < 4, Started: timestamppb.Now()}
	if x.Active {
		x.ExpectedEnd = timestamppb.New(time.Now().Add(time.Duration(4-look)*time.Minute + 100*time.Millisecond))
	}
	return x
}

func TestScrubShowsItsProgress(t *testing.T) {
	s := &scrubbed{answer: &targetv1.ScrubResponse{TotalBytes: 8 * gib, Shares: []*targetv1.Scrub{shares(0, "a"), shares(0, "b")}}, share: shares}
	out, err := s.run(t, &Scrub{Repair: true, Rate: 5 << 20}, "main-p0")
	if err != nil || !strings.Contains(out, "main-p0: comparing 8.0 GiB\n") || !strings.Contains(out, "kubectl gemel status") || s.looks != 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	if q := s.asked[0]; !q.Repair || q.BytesPerSecond != 5<<20 || q.Origin != targetv1.ScrubOrigin_SCRUB_ORIGIN_UNSPECIFIED || len(q.Uuids) != 0 {
		t.Fatalf("%v", q)
	}
	out, err = s.run(t, &Scrub{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"main-p0: 25%, 2.0 GiB of 8.0 GiB compared, 3m0s left, 0 ranges differed, 0 repaired\n", "50%", "75%", "main-p0: Clean: 8.0 GiB of 8.0 GiB compared"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	// On a terminal, progress is one line.
	s.looks = 0
	if out, err = s.run(t, &Scrub{Wait: true, Terminal: true}); err != nil || strings.Count(out, "\n") != 2 || strings.Count(out, clearLine) < 4 {
		t.Errorf("%v %q", err, out)
	}
}

func TestRunningScrubIsShownInsteadOfStarted(t *testing.T) {
	first := shares(1, "a")
	first.Origin = targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE
	s := &scrubbed{answer: &targetv1.ScrubResponse{UnderWay: true, Shares: []*targetv1.Scrub{first}}, share: shares}
	out, err := s.run(t, &Scrub{Repair: true}, "main-p0")
	if err != nil || !strings.Contains(out, "a scrub is already running, started at "+first.Started.AsTime().Format(time.RFC3339)+" by the schedule: 25%") ||
		!strings.Contains(out, "only reports differences") {
		t.Fatalf("%v\n%s", err, out)
	}
	s = &scrubbed{err: status.Error(codes.AlreadyExists, "a scrub is under way"), share: shares}
	if out, err = s.run(t, &Scrub{}, "main-p0"); err != nil || !strings.Contains(out, "is already running") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestScrubFailsWithoutACleanResult(t *testing.T) {
	ok := &targetv1.ScrubResponse{Shares: []*targetv1.Scrub{shares(0, "a")}}
	for want, x := range map[string]struct {
		s     *scrubbed
		names []string
	}{
		`TargetPair "other" does not exist`: {&scrubbed{}, []string{"other"}},
		"two nodes that are in sync":        {&scrubbed{err: status.Error(codes.FailedPrecondition, "a scrub compares the copies of two nodes that are in sync")}, nil},
		"it is down":                        {&scrubbed{down: map[string]bool{"a": true, "b": true}}, nil},
		"main-p0: Mismatched":               {&scrubbed{answer: ok, share: func(int, string) *targetv1.Scrub { return &targetv1.Scrub{Id: "x", MismatchedRanges: 1} }}, nil},
		"main-p0: Stopped": {&scrubbed{answer: ok, share: func(int, string) *targetv1.Scrub {
			return &targetv1.Scrub{Id: "x", Reason: "the peer is not a member any more"}
		}}, nil},
	} {
		if out, err := x.s.run(t, &Scrub{Wait: true}, x.names...); !errors.Is(err, ErrScrub) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\n%s", want, err, out)
		}
	}
	// If one node does not answer, the request goes to the other.
	s := &scrubbed{answer: ok, down: map[string]bool{"a": true}, share: shares}
	if out, err := s.run(t, &Scrub{}, "main-p0"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRateNamesTheFlag(t *testing.T) {
	for text, want := range map[string]uint64{"": 0, "128Mi": 128 << 20, "1Gi": 1 << 30} {
		if got, err := rateOf(text); err != nil || got != want {
			t.Errorf("%q: %d %v", text, got, err)
		}
	}
	for _, text := range []string{"fast", "5", "-1Mi", "2Ti"} {
		if _, err := rateOf(text); err == nil || !strings.Contains(err.Error(), "--rate") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestStatusShowsScrubs(t *testing.T) {
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { x := metav1.NewTime(now.Add(d)); return &x }
	last := &v1alpha1.ScrubResult{Result: "Mismatched", FinishedAt: at(-time.Hour), MismatchedRanges: 3, RepairedRanges: 1}
	for want, s := range map[string]*v1alpha1.ScrubStatus{
		"": nil,
		"  last scrub: Mismatched 2026-11-20T08:00:00Z, 3 ranges differed, 1 repaired: see kubectl get events\n  next scrub: 2026-11-20T11:00:00Z\n": {LastResult: last, NextAt: at(2 * time.Hour)},
		"  scrub (Schedule): 1.0 GiB of 4.0 GiB compared, about 1m0s left, 0 ranges differed, 0 repaired\n": {Active: true, Origin: "Schedule", DoneBytes: gib, TotalBytes: 4 * gib,
			EstimatedCompletion: at(time.Minute), NextAt: at(time.Hour)},
	} {
		var out bytes.Buffer
		if printScrub(&out, "  ", s, now); out.String() != want {
			t.Errorf("%q is not %q", fmt.Sprint(&out), want)
		}
	}
}
