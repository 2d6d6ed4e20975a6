package operator

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestEnded(t *testing.T) {
	failed := errors.New("the cache did not sync")
	slow := fmt.Errorf("failed waiting for all runnables to end: %w", context.DeadlineExceeded)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range []struct {
		ctx       context.Context
		err, want error
	}{
		{t.Context(), nil, nil},
		{t.Context(), failed, failed},
		{stopped, nil, nil},
		{stopped, failed, nil},
		{stopped, slow, slow},
	} {
		if got := ended(c.ctx, c.err); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("stopped %v, the manager returns %v: %v, not %v", c.ctx.Err(), c.err, got, c.want)
		}
	}
}
