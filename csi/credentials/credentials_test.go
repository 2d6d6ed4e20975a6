package credentials

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// operator returns new credentials for each request, or err.
type operator struct {
	mu    sync.Mutex
	asked []string
	err   error
	none  bool
}

func (o *operator) Enroll(_ context.Context, pair string) (enroll.Answer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, pair)
	if o.err != nil || o.none {
		return enroll.Answer{}, o.err
	}
	n := len(o.asked)
	return enroll.Answer{User: fmt.Sprint("u", n), Secret: fmt.Sprint("secret-of-host-", n), MutualUser: "m", MutualSecret: fmt.Sprint("secret-of-pair-", n)}, nil
}

func setup(t *testing.T) (*operator, *Keeper, *bytes.Buffer) {
	t.Helper()
	o, log := &operator{}, &bytes.Buffer{}
	k, err := New(o, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return o, k, log
}

func TestKeeperRequestsOnce(t *testing.T) {
	o, k, _ := setup(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if s, err := k.Get(t.Context(), "p"); err != nil || s.Auth.User != "u1" || s.Mutual.User != "m" {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
	all.Wait()
	first, err := k.Get(t.Context(), "p")
	if err != nil || len(o.asked) != 1 {
		t.Fatalf("%v, %v", o.asked, err)
	}
	// After concurrent rejections there is one request.
	for range 3 {
		if s, err := k.Other(t.Context(), "p", first); err != nil || s.Auth.User != "u2" {
			t.Errorf("%v, %v", s, err)
		}
	}
	if s, err := k.Get(t.Context(), "q"); err != nil || s.Auth.User != "u3" {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := k.Fresh(t.Context(), "p"); err != nil || s.Auth.User != "u4" {
		t.Errorf("%v, %v", s, err)
	}
	o.err = enroll.ErrUnavailable
	if s, err := k.Get(t.Context(), "p"); err != nil || s.Auth.User != "u4" {
		t.Errorf("known credentials need no request: %v, %v", s, err)
	}
	if _, err := k.Get(t.Context(), "r"); !errors.Is(err, enroll.ErrUnavailable) {
		t.Error(err)
	}
	o.err, o.none = nil, true
	if s, err := k.Get(t.Context(), "r"); err != nil || !s.Same(Set{}) || s.Same(first) {
		t.Errorf("%v, %v", s, err)
	}
	if n := testutil.ToFloat64(k.requests.WithLabelValues("given")); n != 4 {
		t.Errorf("%v given", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	k.pairs["p"].turn <- struct{}{} // a request that never ends
	cancel()
	if _, err := k.Get(ctx, "p"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// attacher has attachments whose credentials are rejected until they are renewed.
type attacher struct {
	attach.Attacher
	refused []attach.Refusal
	given   []string
	err     error
}

func (a *attacher) Refused(context.Context) ([]attach.Refusal, error) { return a.refused, a.err }

func (a *attacher) Renew(_ context.Context, of attach.Refusal, auth, mutual *attach.CHAP) error {
	a.given = append(a.given, fmt.Sprint(of.VolumeID, " ", auth, " ", mutual))
	return a.err
}

func TestRenewBacksOff(t *testing.T) {
	o, k, log := setup(t)
	a := &attacher{refused: []attach.Refusal{{VolumeID: "v", Pair: "p"}, {VolumeID: "w", Pair: "p"}, {VolumeID: "by hand"}}}
	r := &renewal{Keeper: k, attacher: a, next: map[string]time.Time{}, pause: map[string]time.Duration{}}
	now := time.Now()
	look := func(after time.Duration) int {
		t.Helper()
		before := len(o.asked)
		now = now.Add(after)
		r.reconcile(t.Context(), now)
		return len(o.asked) - before
	}
	o.err = enroll.ErrUnavailable
	if n := look(0); n != 1 || len(a.given) != 0 {
		t.Errorf("%d requests, renewed %v", n, a.given)
	}
	o.err = nil
	if n := look(renewEvery - time.Second); n != 0 {
		t.Errorf("%d requests before the end of the pause", n)
	}
	if n := look(2 * time.Second); n != 1 || fmt.Sprint(a.given) != "[v chap(u2) chap(m) w chap(u2) chap(m)]" {
		t.Errorf("%d requests, renewed %v", n, a.given)
	}
	// While they are rejected, the interval of requests increases.
	if n := look(renewEvery); n != 0 {
		t.Errorf("%d requests", n)
	}
	for range 10 {
		look(renewMost)
	}
	if n := look(renewMost / 2); n != 0 {
		t.Errorf("%d requests", n)
	}
	// After a recovery, the next rejection causes a request at once.
	a.refused = nil
	look(0)
	a.refused, a.given = []attach.Refusal{{VolumeID: "x", Pair: "p"}}, nil
	o.none = true
	if n := look(0); n != 1 || fmt.Sprint(a.given) != "[x <nil> <nil>]" {
		t.Errorf("%d requests, renewed %v", n, a.given)
	}
	a.err = errors.New("no holder")
	look(renewMost)
	if strings.Contains(log.String(), "secret-of") {
		t.Error(log.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k.Renew(ctx, a)
}
