package initiator

import (
	"errors"
	"slices"

	"github.com/gemel-storage/gemel/internal/alua"
)

// change alters path states with the device locked, then routes again, wakes who waits, and tells
// the events.
func (d *Device) change(alter func()) {
	d.mu.Lock()
	alter()
	d.rerouteLocked()
	close(d.changed)
	d.changed = make(chan struct{})
	events := d.events
	d.events = nil
	d.mu.Unlock()
	for _, e := range events {
		d.log.Info("iscsi device: "+string(e.Kind), "target", d.cfg.Target, "lun", d.cfg.LUN, "portal", e.Portal,
			"session", e.Session, "state", byte(e.State), "err", e.Err)
		if d.cfg.Events != nil {
			d.cfg.Events(e)
		}
	}
}

func (d *Device) tellLocked(e Event) { d.events = append(d.events, e) }

func (d *Device) rerouteLocked() {
	views := make([]pathView, len(d.paths))
	old := d.cur.Load()
	for i, p := range d.paths {
		views[i] = p.view
	}
	var next []*path
	for _, i := range route(views, old.portal()) {
		next = append(next, d.paths[i])
	}
	if !slices.Equal(next, old.carrying()) {
		now := old.succeed(next)
		d.cur.Store(now)
		if now.portal() != old.portal() {
			e := Event{Kind: EventRoute}
			if now != nil {
				e.Portal, e.Session, e.State = next[0].portal, next[0].session, next[0].view.state
			}
			d.tellLocked(e)
		}
	}
	if next != nil && len(d.parked) > 0 {
		d.unpark()
	}
	d.presenceLocked()
}

// sessionLost takes a path out of use because its session has ended.
func (d *Device) sessionLost(p *path, sess *Session, cause error) {
	if p.sess.Load() != sess {
		return
	}
	d.change(func() {
		if !p.sess.CompareAndSwap(sess, nil) {
			return
		}
		p.view.up, p.lastErr = false, cause
		d.tellLocked(Event{Kind: EventPathDown, Portal: p.portal, Session: p.session, Err: cause})
	})
}

// observe draws the conclusions of an outcome that concern path and unit.
func (d *Device) observe(p *path, sess *Session, v verdict, o outcome) {
	switch v.note {
	case noteNone:
		return
	case noteLost:
		d.sessionLost(p, sess, o.err)
		return
	case noteNotServing:
		d.refuses(p, wantALUA, func(q *path) { q.setStateLocked(v.state) })
		return
	case noteNoUnit:
		d.refuses(p, wantVerify, func(q *path) { q.lastErr = &SCSIError{Status: o.status, Sense: o.sense} })
		return
	case noteALUA:
		for _, q := range d.paths {
			q.want(wantALUA)
		}
	case noteCapacity:
		for _, q := range d.paths {
			q.want(wantCapacity)
		}
	case noteInventory:
		p.want(wantVerify)
	}
	d.change(func() {
		d.tellLocked(Event{Kind: EventUnitAttention, Portal: p.portal, Session: p.session, Sense: o.sense})
	})
}

// refuses blocks a path that has refused a command, and the other sessions to its portal: the same
// node would refuse it there as well, once for each session. Each asks on its own what has become
// of that, so that none depends on another that may be lost meanwhile.
func (d *Device) refuses(p *path, ask uint32, note func(q *path)) {
	var alike []*path
	d.change(func() {
		alike = d.alikeLocked(p)
		for _, q := range alike {
			q.view.blocked = true
			note(q)
		}
	})
	for _, q := range alike {
		q.want(ask)
	}
}

// setStateLocked notes the access state of the path's target port group.
func (p *path) setStateLocked(s alua.State) {
	if p.view.state == s {
		return
	}
	p.view.state = s
	if p.view.up && s == alua.Optimized {
		p.rose = monotonic()
		p.tookOver()
	}
	if p.view.up {
		p.d.tellLocked(Event{Kind: EventState, Portal: p.portal, Session: p.session, State: s})
	}
}

// hopeless tells errors that trying again does not fix without another configuration. That no LUN
// is mapped is judged as in nounit.go.
func hopeless(err error) bool {
	var le *LoginError
	if errors.As(err, &le) {
		return le.Permanent() && !strange(err)
	}
	return errors.Is(err, ErrAuth) || errors.Is(err, ErrWrongUnit)
}
