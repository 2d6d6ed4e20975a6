package wait

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestBounded(t *testing.T) {
	bad := errors.New("bad")
	if err := Bounded(t.Context(), "it", func() error { return bad }); !errors.Is(err, bad) || err.Error() != "it: bad" {
		t.Error(err)
	}
	if err := Bounded(t.Context(), "it", func() error { return nil }); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	end := make(chan struct{})
	defer close(end)
	if err := Bounded(ctx, "it", func() error { <-end; return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestPoll(t *testing.T) {
	n := 0
	if err := Poll(t.Context(), time.Minute, time.Millisecond, func() bool { n++; return n == 3 }); err != nil || n != 3 {
		t.Error(n, err)
	}
	if err := Poll(t.Context(), time.Millisecond, time.Millisecond, func() bool { return false }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Poll(ctx, time.Minute, time.Minute, func() bool { return true }); err != nil {
		t.Error("it is asked once in any case:", err)
	}
}
