package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// rounds bound how often a plan is made again. An attachment from nothing takes about six.
const rounds = 40

// converge observes, plans and acts until nothing is left to do. What concerns sessions is planned
// and done under the target's lock, with the records of all other volumes read under it: only then
// is it certain that no other volume uses the target. The record of what is gone is removed under
// the same lock, so that of two that leave at once the second is the last.
//
// It returns the last observation, with which nothing was left to do: callers do not have to
// observe again.
func (a *Attacher) converge(ctx context.Context, g goal) (*observed, error) {
	return a.progress(ctx, g, newProgress())
}

func (a *Attacher) progress(ctx context.Context, g goal, p progress) (*observed, error) {
	for range rounds {
		if done, err := a.round(ctx, g, p); done != nil || err != nil {
			return done, err
		}
	}
	return nil, fmt.Errorf("volume %s: not complete after %d rounds: another process undoes the steps", g.volume, rounds)
}

// round returns what it observed if nothing was left to do, and nil if it has acted.
func (a *Attacher) round(ctx context.Context, g goal, p progress) (done *observed, err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	outer := ctx
	ctx, unlock, err := a.lockTargets(ctx, g)
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := a.all()
	if err != nil {
		return nil, err
	}
	g.others = besides(all, g.volume)
	o, err := a.host.observe(ctx)
	if err != nil {
		return nil, err
	}
	a.remember(g, o, p)
	steps, err := plan(g, o, p)
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 {
		if g.absent && !g.keep {
			return o, a.forget(g.volume)
		}
		return o, nil
	}
	shared := steps[0].do.onSessions()
	if !shared {
		unlock()
		ctx = outer
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
			return nil, err
		}
	}
	return nil, a.login(ctx, g, logins, p)
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

// login tries all portals at once. One that cannot be reached is a missing path.
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
		if errs[i] != nil {
			p.failed[s.node.portal] = errs[i]
			a.log.Warn("login failed", "volume", g.volume, "target", s.node.target, "portal", s.node.portal, "err", errs[i])
		}
		a.outcome(s.node.portal, errs[i])
	}
	return nil
}

// outcome of a login.
func (a *Attacher) outcome(portal netip.AddrPort, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		delete(a.logins, portal)
		return
	}
	a.logins[portal] = failure{time.Now(), a.logins[portal].times + 1, err, errors.Is(err, attach.ErrCredentials)}
}

// lockTargets takes the locks of all targets of the attachment, always in the same order. Who heals
// gives way: it does not wait, and the context ends when somebody else does.
func (a *Attacher) lockTargets(ctx context.Context, g goal) (_ context.Context, unlock func(), err error) {
	var names []string
	for _, e := range g.endpoints() {
		names = append(names, string(e.target))
	}
	slices.Sort(names)
	var held []func()
	release := sync.OnceFunc(func() {
		for _, f := range slices.Backward(held) {
			f()
		}
	})
	for _, name := range names {
		if !g.heal {
			held = append(held, a.targets.Lock(name))
			continue
		}
		unlock, wanted, ok := a.targets.TryLock(name)
		if !ok {
			release()
			return nil, nil, errYield
		}
		next, stop := yieldTo(ctx, wanted)
		ctx = next
		held = append(held, func() { stop(); unlock() })
	}
	return ctx, release, nil
}

// remember spares a call that has a session the wait for a portal that did not answer moments ago,
// and who heals that for any.
func (a *Attacher) remember(g goal, o *observed, p progress) {
	for _, t := range g.byTarget() {
		a.rememberTarget(t, o, p)
	}
}

func (a *Attacher) rememberTarget(g goal, o *observed, p progress) {
	for _, portal := range g.portals {
		if g.noSecrets && !g.chapKnown && g.lacks(portal, o) && o.node(g.target, portal) == nil && p.failed[portal] == nil {
			// Somebody removed the record. Who has the secrets is asked for them by Refused.
			p.failed[portal] = fmt.Errorf("%w: the node record with them is gone", attach.ErrCredentials)
			a.outcome(portal, p.failed[portal])
		}
	}
	if len(g.up(o)) == 0 && !g.heal {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, portal := range g.portals {
		if f, ok := a.logins[portal]; ok && time.Now().Before(f.over(g.heal)) && p.failed[portal] == nil {
			p.failed[portal] = fmt.Errorf("the last login failed moments ago: %w", f.err)
		}
	}
}
