package userspace

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// poll asks until ok says yes, the limit has passed or the context ends. What it waits for takes milliseconds.
func poll(ctx context.Context, limit time.Duration, ok func() bool) error {
	return wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, limit, true, func(context.Context) (bool, error) { return ok(), nil })
}
