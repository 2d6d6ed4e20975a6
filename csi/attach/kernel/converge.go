package kernel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// rounds bound how often a plan is made anew. An attachment from nothing takes about six.
const rounds = 40

// converge observes, plans and acts until nothing is left to do. What concerns sessions is planned and done under the target's lock,
// with the records of all other volumes read under it: only then is it certain that nobody else uses the target. The record of what is
// gone is removed under the same lock, so that of two that leave at once the second is the last.
func (a *Attacher) converge(ctx context.Context, g goal) error {
	p := newProgress()
	for range rounds {
		more, err := a.round(ctx, g, p)
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
	return fmt.Errorf("volume %s: no end after %d rounds: something undoes what is done", g.volume, rounds)
}

func (a *Attacher) round(ctx context.Context, g goal, p progress) (more bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	unlock := sync.OnceFunc(a.targets.Lock(string(g.target)))
	defer unlock()
	if g.others, err = a.others(g.volume); err != nil {
		return false, err
	}
	o, err := a.host.observe(ctx)
	if err != nil {
		return false, err
	}
	a.remember(g, o, p)
	steps, err := plan(g, o, p)
	if err != nil {
		return false, err
	}
	if len(steps) == 0 {
		if g.absent && !g.keep {
			return false, a.forget(g.volume)
		}
		return false, nil
	}
	shared := steps[0].do.onSessions()
	if !shared {
		unlock()
	}
	var logins []step
	for _, s := range steps {
		if s.do.onSessions() != shared {
			break
		}
		if s.do == doLogin {
			logins = append(logins, s)
			continue
		}
		if err := a.step(ctx, g, s, p); err != nil {
			return false, err
		}
	}
	return true, a.login(ctx, g, logins, p)
}

func (a *Attacher) step(ctx context.Context, g goal, s step, p progress) error {
	begin := time.Now()
	p.note(s)
	err := a.host.do(ctx, s)
	a.log.Debug("step", "volume", g.volume, "step", s.String(), "took", time.Since(begin), "err", err)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// login tries all portals at once. One that can not be reached is a missing path.
func (a *Attacher) login(ctx context.Context, g goal, steps []step, p progress) error {
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, s := range steps {
		wg.Go(func() { errs[i] = a.host.do(ctx, s) })
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return errors.Join(append(errs, context.Cause(ctx))...)
	}
	for i, s := range steps {
		p.note(s)
		if errs[i] == nil && p.done(s) > 1 {
			errs[i] = errors.New("the session is gone right after the login")
		}
		if errs[i] == nil {
			continue
		}
		p.failed[s.node.portal] = errs[i]
		a.log.Warn("login failed", "volume", g.volume, "target", g.target, "portal", s.node.portal, "err", errs[i])
		a.mu.Lock()
		a.logins[s.node.portal] = failure{time.Now(), errors.Is(errs[i], attach.ErrCredentials)}
		a.mu.Unlock()
	}
	return nil
}

// remember spares a call that has a session the wait for a portal that did not answer moments ago.
func (a *Attacher) remember(g goal, o *observed, p progress) {
	if len(g.up(o)) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, portal := range g.portals {
		if f, ok := a.logins[portal]; ok && time.Since(f.at) < again && p.failed[portal] == nil {
			p.failed[portal] = errors.New("could not be logged in to moments ago")
		}
	}
}
