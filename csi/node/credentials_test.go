package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/credentials"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// targets accept one user; empty: no CHAP.
type targets struct {
	attach.Attacher
	user  string
	tries []string
}

func (a *targets) Attach(_ context.Context, x attach.Attachment) (string, error) {
	user := ""
	if x.Auth != nil {
		user = x.Auth.User
	}
	a.tries = append(a.tries, user)
	if user != a.user {
		return "", fmt.Errorf("%w: %w", attach.ErrFailed, attach.ErrCredentials)
	}
	return "/dev/x", nil
}

type source struct {
	answer enroll.Answer
	err    error
	asked  int
}

func (s *source) Enroll(context.Context, string) (enroll.Answer, error) {
	s.asked++
	return s.answer, s.err
}

func answer(user string) enroll.Answer {
	return enroll.Answer{User: user, Secret: "a secret of it", MutualUser: "m", MutualSecret: "a secret of them"}
}

func TestAttachWithCredentials(t *testing.T) {
	a, s := &targets{user: "u1"}, &source{answer: answer("u1")}
	k, err := credentials.New(s, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n := &unlocked{cfg: Config{Attacher: a, Credentials: k}}
	try := func(x attach.Attachment, want codes.Code, asked int, tries string) {
		t.Helper()
		s.asked, a.tries = 0, nil
		if _, err := n.attach(t.Context(), x); status.Code(grpcError(err)) != want || s.asked != asked || fmt.Sprint(a.tries) != tries {
			t.Errorf("%v; %d requests, tried %v", err, s.asked, a.tries)
		}
	}
	wanted := attach.Attachment{Pair: "p", Enroll: true}
	s.err = enroll.ErrUnavailable
	try(wanted, codes.Unavailable, 1, "[]")
	s.err = enroll.ErrRefused
	try(wanted, codes.FailedPrecondition, 1, "[]")
	s.err = nil
	try(wanted, codes.OK, 1, "[u1]")
	try(wanted, codes.OK, 0, "[u1]")
	// They were replaced: the cached ones are rejected, and new ones requested.
	a.user, s.answer = "u2", answer("u2")
	try(wanted, codes.OK, 1, "[u1 u2]")
	// The operator has not mapped its new ones yet.
	a.user = "u3"
	try(wanted, codes.Unavailable, 1, "[u2]")
	s.err = errors.Join(enroll.ErrUnavailable)
	try(wanted, codes.Unavailable, 1, "[u2]")
	s.err = nil
	// The publish context is older than what the targets want: either way.
	a.user, s.answer = "u4", answer("u4")
	try(wanted, codes.OK, 1, "[u2 u4]")
	try(attach.Attachment{Pair: "p"}, codes.OK, 0, "[ u4]")
	a.user, s.answer = "", enroll.Answer{}
	try(wanted, codes.OK, 1, "[u4 ]")
	// Credentials of the call are never replaced, nor without a pair.
	a.user = "u5"
	try(attach.Attachment{Pair: "p", Enroll: true, Auth: &attach.CHAP{User: "by hand"}}, codes.Unavailable, 0, "[by hand]")
	try(attach.Attachment{}, codes.Unavailable, 0, fmt.Sprint([]string{""}))
	n.cfg.Credentials = nil
	try(wanted, codes.FailedPrecondition, 0, "[]")
}

// byPair has other credentials for each pair.
type byPair struct{ asked []string }

func (s *byPair) Enroll(_ context.Context, pair string) (enroll.Answer, error) {
	s.asked = append(s.asked, pair)
	return answer("user of " + pair), nil
}

// twoTargets notes the users of both targets of a volume.
type twoTargets struct {
	attach.Attacher
	users []string
}

func (a *twoTargets) Attach(_ context.Context, x attach.Attachment) (string, error) {
	for _, t := range x.Targets() {
		a.users = append(a.users, t.Auth.User)
	}
	return "/dev/x", nil
}

// Each target of a volume is logged in to with the credentials of its pair.
func TestCredentialsOfEachPair(t *testing.T) {
	a, s := &twoTargets{}, &byPair{}
	k, err := credentials.New(s, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n := &unlocked{cfg: Config{Attacher: a, Credentials: k}}
	x := attach.Attachment{Pair: "p", Enroll: true, Others: []attach.Target{{IQN: "u", Pair: "q"}}}
	if _, err := n.attach(t.Context(), x); err != nil || fmt.Sprint(s.asked, a.users) != "[p q] [user of p user of q]" {
		t.Errorf("%v: asked %v, users %v", err, s.asked, a.users)
	}
	if x.Others[0].Auth != nil {
		t.Error("the caller's attachment was changed")
	}
}
