// Package wait bounds waiting for what cannot be interrupted and for what nobody tells of.
package wait

import (
	"context"
	"fmt"
	"time"
)

// Bounded runs f, but waits no longer than the context; what is in the error. f must end by itself at some later time.
func Bounded(ctx context.Context, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
}

// Poll asks again and again until ok says yes, the limit has passed or the context ends; the latter two are its error.
func Poll(ctx context.Context, limit, every time.Duration, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := time.NewTicker(every)
	defer t.Stop()
	for !ok() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
