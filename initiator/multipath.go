package initiator

import (
	"errors"

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
			"state", byte(e.State), "err", e.Err)
		if d.cfg.Events != nil {
			d.cfg.Events(e)
		}
	}
}

func (d *Device) tellLocked(e Event) { d.events = append(d.events, e) }

func (d *Device) rerouteLocked() {
	views := make([]pathView, len(d.paths))
	current := -1
	old := d.cur.Load()
	for i, p := range d.paths {
		views[i] = p.view
		if p == old {
			current = i
		}
	}
	var next *path
	if i := route(views, current); i >= 0 {
		next = d.paths[i]
	}
	if next != old {
		d.cur.Store(next)
		e := Event{Kind: EventRoute}
		if next != nil {
			e.Portal, e.State = next.portal, next.view.state
		}
		d.tellLocked(e)
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
		d.tellLocked(Event{Kind: EventPathDown, Portal: p.portal, Err: cause})
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
		d.change(func() {
			p.view.blocked = true
			p.setStateLocked(v.state)
		})
		p.want(wantALUA)
		return
	case noteNoUnit:
		d.change(func() {
			p.view.blocked = true
			p.lastErr = &SCSIError{Status: o.status, Sense: o.sense}
		})
		p.want(wantVerify)
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
	d.change(func() { d.tellLocked(Event{Kind: EventUnitAttention, Portal: p.portal, Sense: o.sense}) })
}

// setStateLocked notes the access state of the path's target port group.
func (p *path) setStateLocked(s alua.State) {
	if p.view.state == s {
		return
	}
	p.view.state = s
	if p.view.up {
		p.d.tellLocked(Event{Kind: EventState, Portal: p.portal, State: s})
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
