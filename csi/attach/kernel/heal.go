package kernel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// When attachments are looked at without being asked for.
const (
	settle     = time.Second      // of silence after an event: what belongs together comes together
	settleMost = 5 * time.Second  // after the first one
	sweep      = time.Minute      // without any, so that a lost event is only late
	healLimit  = time.Minute      // for one attachment
	stuckAfter = 20 * time.Second // that a session has no connection although its portal answers
	askEvery   = 10 * time.Second // whether it does
	mixedAfter = 10 * time.Second // multipathd reads the priorities of all paths within 2 s
	restLeast  = time.Second      // after an attachment was acted upon; doubled when it soon has to be again
	restMost   = sweep
)

var (
	// errYield: a call wants what was about to be healed.
	errYield = errors.New("a call comes first")
	errLimit = fmt.Errorf("the repair took more than %v", healLimit)
)

// healer keeps attachments as their records say, one at a time, when the kernel tells that
// something has changed and once in a while. Its memory is only about when to look again; what to
// do follows from what is there, as in a call.
type healer struct {
	a     *Attacher
	ready func(context.Context) error // whether the worker has what is needed
	wake  chan struct{}

	mu      sync.Mutex
	changed change // since the last pass
	deaf    bool   // there is no subscription to kernel events

	volumes  map[string]*patient
	answered map[int]time.Time // since when the portal of a session without a connection answers, by the session's number
	said     string
}

// patient is an attachment.
type patient struct {
	reread bool      // an event about its size has not been served yet
	mixed  time.Time // a group of its map has paths of both nodes since then
	acted  time.Time
	rest   time.Duration
	said   string
}

func newHealer(a *Attacher) *healer {
	return &healer{a: a, ready: a.Check, wake: make(chan struct{}, 1), changed: change{all: true}, volumes: map[string]*patient{}, answered: map[int]time.Time{}}
}

// Run heals until the context ends. changed is called when paths may not be as they were: the
// kernel has sent an event, or an attachment was repaired.
func (a *Attacher) Run(ctx context.Context, changed func()) {
	ctx, cancel := context.WithCancel(ctx)
	h := newHealer(a)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { h.listen(ctx) })
	for {
		next, acted := h.pass(ctx, time.Now())
		if acted {
			changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		case <-h.wake:
			h.quiet(ctx)
			changed()
		}
	}
}

// listen takes what the kernel tells. Without it, sizes are read in every pass.
func (h *healer) listen(ctx context.Context) {
	err := h.a.host.events(ctx, h.note)
	if ctx.Err() != nil {
		return
	}
	h.a.log.Warn("cannot subscribe to kernel events; falling back to periodic checks", "every", sweep, "err", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaf = true
}

// note wakes the loop.
func (h *healer) note(c change) {
	h.keep(c)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *healer) keep(c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed.all = h.changed.all || c.all
	h.changed.sized = append(h.changed.sized, c.sized...)
	if len(h.changed.sized) > maxSized {
		h.changed = change{all: true}
	}
}

func (h *healer) take() (c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, h.changed = h.changed, change{all: h.deaf}
	return c
}

// quiet waits until the events that belong together are there.
func (h *healer) quiet(ctx context.Context) {
	most := time.After(settleMost)
	for {
		select {
		case <-h.wake:
		case <-time.After(settle):
			return
		case <-most:
			return
		case <-ctx.Done():
			return
		}
	}
}

// pass looks at all attachments once and heals those that are not as they should be. next is when
// to look again without an event.
func (h *healer) pass(ctx context.Context, now time.Time) (next time.Time, acted bool) {
	next = now.Add(sweep - sweep/10 + rand.N(sweep/5))
	soon := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	changes := h.take()
	all, err := h.a.all()
	var o *observed
	if err == nil {
		o, err = h.a.host.observe(ctx)
	}
	if err != nil {
		h.say(ctx, err)
		h.keep(changes)
		return now.Add(askEvery), false
	}
	h.say(ctx, nil)
	stuck := h.stuck(ctx, now, o, all, soon)
	var states map[string]map[string]pathState
	if len(all) > 0 {
		states = h.a.host.allStates(ctx)
	}
	for _, e := range all {
		g, p := e.goal, h.patient(e.goal.volume)
		if e.record.Partial || e.record.BootID != o.boot || ctx.Err() != nil {
			continue
		}
		g.heal = true
		g.relog = stuck
		g.others = besides(all, g.volume)
		p.reread = p.reread || changes.of(g, o)
		g.resize = p.reread
		g.regroup = p.regroup(now, g, o, states, soon)
		if until := p.acted.Add(p.rest); now.Before(until) {
			soon(until)
			continue
		}
		if slices.ContainsFunc(o.mapsOf(g.unit), func(m *dmMap) bool { return m.suspended }) {
			continue // somebody is at work on it
		}
		done, err := h.repair(ctx, g, o)
		switch {
		case errors.Is(err, errYield):
			soon(now.Add(settleMost))
			continue
		case len(done.times) > 0:
			acted = true
			p.rest, p.acted = min(max(restLeast, 2*p.rest), restMost), time.Now()
			soon(p.acted.Add(p.rest))
		case now.Sub(p.acted) > sweep:
			p.rest = 0
		}
		p.reread = p.reread && (err != nil || g.anyAway(o))
		h.report(ctx, p, g, done, err)
		for _, t := range g.byTarget() {
			for _, portal := range t.portals {
				if f, ok := h.a.failure(portal); ok && t.lacks(portal, o) {
					soon(f.over(true))
				}
			}
		}
	}
	h.prune(all)
	return next, acted
}

// regroup names the maps whose groups remain mixed or split.
func (p *patient) regroup(now time.Time, g goal, o *observed, states map[string]map[string]pathState, soon func(time.Time)) map[naa]bool {
	out := map[naa]bool{}
	for _, l := range g.unit.each() {
		if of := states[l.id.wwid()]; mixed(of) || split(l, o, of) {
			out[l.id] = true
		}
	}
	if !p.stays(now, len(out) > 0, soon) {
		return nil
	}
	return out
}

// stays tells whether groups that are mixed remain so. While the owner of a LUN changes multipathd
// reads one priority after the other, and groups that were made of that would be the wrong ones.
func (p *patient) stays(now time.Time, mixed bool, soon func(time.Time)) bool {
	switch {
	case !mixed:
		p.mixed = time.Time{}
		return false
	case p.mixed.IsZero():
		p.mixed = now
	}
	if due := p.mixed.Add(mixedAfter); now.Before(due) {
		soon(due)
	}
	return now.Sub(p.mixed) >= mixedAfter
}

// repair brings an attachment to what its record says, unless a call has it. Whether there is
// anything to do is decided without any lock, from one observation of all attachments; what is done
// then is planned again under the locks.
func (h *healer) repair(ctx context.Context, g goal, o *observed) (done progress, err error) {
	first := newProgress()
	h.a.remember(g, o, first)
	if steps, err := plan(g, o, first); err != nil || len(steps) == 0 {
		return done, err
	}
	if err := h.ready(ctx); err != nil {
		return done, err
	}
	unlock, wanted, ok := h.a.volumes.TryLock(g.volume)
	if !ok {
		return done, errYield
	}
	defer unlock()
	r, err := h.a.load(g.volume)
	if err != nil {
		return done, err
	}
	if r == nil || r.Partial || r.Attachment.Generation != g.generation || r.Attachment.SessionCount() != g.count() {
		return done, nil // a call came in between
	}
	ctx, cancel := context.WithTimeoutCause(ctx, healLimit, errLimit)
	defer cancel()
	ctx, stop := yieldTo(ctx, wanted)
	defer stop()
	done = newProgress()
	_, err = h.a.progress(ctx, g, done)
	return done, err
}

// yieldTo ends the context when somebody wants what is held; stop ends the watching.
func yieldTo(ctx context.Context, wanted <-chan struct{}) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-wanted:
			cancel(errYield)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); wg.Wait() }
}

// stuck lists the numbers of sessions of ours that are without a connection for a while although
// their portals answer. iscsid logs in again by itself, with the secrets that it was given when
// the session was made, and does not tell why that fails; a session that is made again has the
// present ones, and if they are refused that is known.
func (h *healer) stuck(ctx context.Context, now time.Time, o *observed, all []entry, soon func(time.Time)) (out []int) {
	answered, asked := map[int]time.Time{}, map[netip.AddrPort]bool{}
	for _, s := range o.sessions {
		if !s.ours() || s.connected || len(all) == 0 {
			continue
		}
		soon(now.Add(askEvery))
		answers, ok := asked[s.portal]
		if !ok {
			answers = h.a.host.answers(ctx, s.portal)
			asked[s.portal] = answers
		}
		if !answers {
			continue
		}
		since, ok := h.answered[s.sid]
		if !ok {
			since = now
		}
		answered[s.sid] = since
		if now.Sub(since) >= stuckAfter {
			out = append(out, s.sid)
		}
	}
	h.answered = answered
	return out
}

func (h *healer) patient(volume string) *patient {
	p := h.volumes[volume]
	if p == nil {
		p = &patient{}
		h.volumes[volume] = p
	}
	return p
}

// prune forgets what no attachment has any more.
func (h *healer) prune(all []entry) {
	for id := range h.volumes {
		if !slices.ContainsFunc(all, func(e entry) bool { return e.goal.volume == id }) {
			delete(h.volumes, id)
		}
	}
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	for portal, f := range h.a.logins {
		if time.Since(f.at) > sweep && !slices.ContainsFunc(all, func(e entry) bool { return e.goal.reaches(portal) }) {
			delete(h.a.logins, portal)
		}
	}
}

// report logs each repair, and each new reason for a failed repair once.
func (h *healer) report(ctx context.Context, p *patient, g goal, done progress, err error) {
	switch text := fmt.Sprint(err); {
	case ctx.Err() != nil:
	case err == nil:
		p.said = ""
		for k := range done.times {
			if k.do != doRescan && (k.do != doLogin || len(done.failed) == 0) { // what only looks, or has been reported as failed
				h.a.log.Info("repaired an attachment", "volume", g.volume)
				break
			}
		}
	case text != p.said:
		p.said = text
		h.a.log.Warn("cannot repair an attachment; it is tried again", "volume", g.volume, "err", err)
	}
}

// say is tell for all attachments.
func (h *healer) say(ctx context.Context, err error) {
	if err == nil {
		h.said = ""
	} else if text := err.Error(); text != h.said && ctx.Err() == nil {
		h.said = text
		h.a.log.Warn("cannot read the attachments", "err", err)
	}
}
