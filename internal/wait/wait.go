// Package wait bounds waiting for what cannot be interrupted.
package wait

import (
	"context"
	"fmt"
)

// Bounded runs f, but waits no longer than the context; what is in the error. f must end at some
// later time without help.
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
