package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrInterrupted is what Run returns when its context has ended before the run had.
var ErrInterrupted = errors.New("interrupted")

// interrupted notes that the run ends early, and takes what that has caused out of err. Everything
// else that is wrong stays.
func (x *runner) interrupted(ctx context.Context, err error) (cut, rest error) {
	after := time.Since(x.rig.rec.begun).Seconds()
	x.report.Interrupted = fmt.Sprintf("%v after %.1f s", ErrInterrupted, after)
	fmt.Fprintln(x.cfg.Out, x.report.Interrupted)
	if !errors.Is(err, ctx.Err()) && !errors.Is(err, context.Cause(ctx)) {
		rest = err
	}
	return fmt.Errorf("%w after %.1f s: the copies were not compared", ErrInterrupted, after), rest
}

// interrupt ends an interrupted run so that what was recorded can be judged: the faults end, and
// every worker is served once more, for the histories are judged with a read of every block. The
// copies are not compared, since that takes a pair in sync.
func (x *runner) interrupt(ctx context.Context, err error) (cut, rest error) {
	if cut, rest = x.interrupted(ctx, err); rest != nil {
		return cut, rest
	}
	if err := x.rig.heal(); err != nil {
		return cut, err
	}
	limited, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), serviceBound, fmt.Errorf("service is not back after %v", serviceBound))
	defer cancel()
	return cut, x.rig.rec.all(limited)
}
