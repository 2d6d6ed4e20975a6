package groupsnapshot

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/internal/cut"
)

// tries is how many attempts one pass makes at most. Further ones come through the work queue.
const tries = 5

// pause between two attempts of a pass. It is random, so that two groups with the same LUNs do not
// meet again and again.
func pause(ctx context.Context) error {
	t := time.NewTimer(50*time.Millisecond + rand.N(200*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take looks what the pairs have, and makes attempts until it is whole.
func (p *pass) take(ctx context.Context) error {
	s, err := p.group.Look(ctx)
	if err != nil {
		return failure(err, false)
	}
	for try := 1; ; try++ {
		switch {
		case s.Final:
			return finding.New(v1alpha1.ReasonInvalid, "the pairs have ended this group snapshot for good: delete the object")
		case s.Ready:
			return p.publish(ctx)
		case s.Whole:
			p.noteTime()
			p.after = p.again()
			return p.copying(s.Copying)
		}
		attempt, err := p.nextAttempt(ctx, s.Attempt)
		if err != nil {
			return err
		}
		if s, err = p.group.Begin(ctx, attempt); err != nil {
			attempts.WithLabelValues("failed").Inc()
			return failure(err, false)
		}
		if s.Whole { // of a coordinator that ended, or whose last answer was lost
			continue
		}
		held, err := p.group.Cut(ctx, attempt)
		p.held = held
		if err == nil {
			attempts.WithLabelValues("cut").Inc()
			heldSeconds.Observe(held.Seconds())
			p.after = p.again() / 4
			return p.copying(len(p.luns))
		}
		attempts.WithLabelValues("failed").Inc()
		err = failure(err, p.heldAny())
		f, ok := finding.Of(err)
		switch {
		case !ok:
			return err
		case !f.Retry:
			_ = p.group.Discard(ctx, attempt) // what it leaves, the next attempt or the deletion removes
			return err
		case !p.heldAny() || try == tries:
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
		s = cut.Standing{Attempt: attempt}
	}
}

func (p *pass) copying(n int) error {
	return finding.New(v1alpha1.ReasonProgressing, "the members were taken; %d of %d LUNs are being copied", n, len(p.luns))
}

// nextAttempt writes the number of the attempt that begins. The write fails if another coordinator
// has written since the object was read; so a number is used by one coordinator, and one that was
// deposed calls no pair with it. It also comes before the first call that changes something at a
// pair: an object without an attempt has nothing there.
func (p *pass) nextAttempt(ctx context.Context, at uint64) (uint64, error) {
	next := p.o.DeepCopy()
	next.Status.Attempt = max(p.o.Status.Attempt, int64(at)) + 1
	if err := p.Status().Update(ctx, next, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
		return 0, fmt.Errorf("attempt of LogicalUnitGroupSnapshot %s: %w", p.o.Name, err)
	}
	p.o = next
	return uint64(next.Status.Attempt), nil
}

// publish marks the object. The mark is refused if the object has changed since it was read, before
// the look at the pairs: another coordinator writes its attempt before it removes anything there.
// From the mark on nothing of the group is taken again, and the members become Ready.
func (p *pass) publish(ctx context.Context) error {
	p.noteTime()
	if err := object.MarkMade(ctx, p, &p.o); err != nil {
		return err
	}
	groups.WithLabelValues("published").Inc()
	return nil
}
