package userspace

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// poll calls ok until it returns true, the limit has passed or the context ends.
func poll(ctx context.Context, limit time.Duration, ok func() bool) error {
	return wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, limit, true, func(context.Context) (bool, error) { return ok(), nil })
}
