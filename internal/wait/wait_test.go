package wait

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestBoundedEndsWithItsContext(t *testing.T) {
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
