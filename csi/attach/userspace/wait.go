package userspace

import (
	"context"
	"time"

	"github.com/gemel-storage/gemel/internal/wait"
)

// poll asks until ok says yes, the limit has passed or the context ends. What it waits for takes milliseconds.
func poll(ctx context.Context, limit time.Duration, ok func() bool) error {
	return wait.Poll(ctx, limit, 5*time.Millisecond, ok)
}
