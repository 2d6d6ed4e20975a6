package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// This file is about a unit that is not there: what a path says of it, and when the device believes
// that.
//
// LOGICAL UNIT NOT SUPPORTED can mean that the host was fenced and the LUN unmapped, for good, or
// that it is unmapped for a moment. While nothing else is known requests wait as for any other path
// that does not serve. They end at once when the device is sure: for Config.NoUnitAfter no path has
// shown the unit, and all that time at least one has said, over a session that lives or by refusing
// one login after the other, that there is none.
//
// Who counts:
//   - A path that says so. A target node says LOGICAL UNIT NOT SUPPORTED only while it serves, that
//     is while it is a member with a lease and knows the mappings, and refuses the login of a host
//     without LUNs (0202h) only then. One that has just started, has no tables yet or is no member
//     says NOT READY instead (dataplane/scsi, submitNoUnit), or that logins are not served (0301h):
//     such paths say nothing. A target of release 0.1.0 refuses a host that it does not know with
//     0202h also while it does not serve.
//   - A path that cannot be reached says nothing either: to be fenced while a node is down is the
//     normal case.
//   - A path that shows the unit, in whatever access state, outweighs all others.
//
// With no path that says anything, requests wait for Config.Deadline as ever. What has been
// believed stays so until a path shows the unit again, also while none can be reached: nothing new
// was said.

// What a path says that does not show the unit.
var (
	errNoUnitHere = errors.New("no such LUN")
	errNoUnitYet  = errors.New("no such LUN, but this node does not serve, so its mappings may be old")
)

func absent(err error) bool { return errors.Is(err, errNoUnitHere) || errors.Is(err, errNoUnitYet) }

// isNoUnit reports LOGICAL UNIT NOT SUPPORTED.
func isNoUnit(err error) bool {
	var se *SCSIError
	return errors.As(err, &se) && se.Status == StatusCheckCondition && decideSense(se.Sense).note == noteNoUnit
}

// absence asks what it means that the unit did not show itself, which said tells. INQUIRY succeeds
// in every state, so it cannot distinguish a node that has no such LUN from a node that has no
// LUNs; TEST UNIT READY does.
func (p *path) absence(ctx context.Context, sess *Session, said error) error {
	_, err := p.query(ctx, sess, cdbTestUnitReady(), 0)
	switch {
	case isNoUnit(err):
		return fmt.Errorf("lun %d: %w: %w", p.d.cfg.LUN, errNoUnitHere, err)
	case notServing(err):
		return fmt.Errorf("lun %d: %w: %v", p.d.cfg.LUN, errNoUnitYet, err) // not %w: it is not about a unit that was verified
	}
	return said
}

// find verifies the unit, and waits with the session while there is none: a new login would not say
// more.
func (p *path) find(ctx context.Context, sess *Session) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for asked := 1; ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-sess.Done():
			return sess.Err()
		case <-p.kick:
			if p.wants.Swap(0)&wantDrain != 0 {
				return p.leave(ctx, sess, errLogoutRequested)
			}
			continue
		case <-timer.C:
		}
		err := p.verify(ctx, sess)
		if !absent(err) {
			return err
		}
		p.d.change(func() {
			p.tried, p.hopeless, p.lastErr = true, false, err
			p.noUnit = errors.Is(err, errNoUnitHere)
			p.d.noUnitSaidLocked(p)
		})
		timer.Reset(p.findDelay(asked))
		asked++
	}
}

// endedLocked draws the conclusions of an attempt at a session that has ended with err. A node that
// serves refuses the login of a host without LUNs; the host gets no other answer, so logins are
// repeated and count like answers over a session, as long as they come without a gap.
func (p *path) endedLocked(err error, took time.Duration) {
	p.tried, p.hopeless, p.lastErr = true, hopeless(err), err
	if !strange(err) {
		p.noUnit = false
		return
	}
	p.lastErr = fmt.Errorf("lun %d: %w: %w", p.d.cfg.LUN, errNoUnitHere, err)
	if took > reconnectMost {
		p.noUnit = false
		p.d.presenceLocked()
	}
	p.noUnit = true
	p.d.noUnitSaidLocked(p)
}

// strange reports a login that was refused because no LUN is mapped to the host.
func strange(err error) bool {
	var le *LoginError
	return errors.As(err, &le) && le.Status == pdu.LoginForbidden
}

// findDelay is short at first, for a LUN that is unmapped and mapped again.
func (p *path) findDelay(asked int) time.Duration {
	switch {
	case asked <= 20:
		return backoff(asked)
	case p.d.noUnit.Load():
		return reconnectMost
	}
	return idlePoll
}

// noUnitSaidLocked draws the conclusion of what a path has just said. The device gives the unit up
// at an answer only, never by the mere passing of time: a target that went silent must not be taken
// at its last word.
func (d *Device) noUnitSaidLocked(p *path) {
	now := monotonic()
	switch {
	case !p.noUnit || d.shownLocked():
	case d.noUnitSince == 0:
		d.noUnitSince = now
	case now-d.noUnitSince >= int64(d.cfg.NoUnitAfter) && d.noUnit.CompareAndSwap(false, true):
		d.tellLocked(Event{Kind: EventNoUnit, Portal: p.portal, Session: p.session, Err: p.lastErr})
		d.unpark()
	}
}

// presenceLocked follows paths that come and go.
func (d *Device) presenceLocked() {
	if d.shownLocked() {
		d.noUnitSince = 0
		if d.noUnit.CompareAndSwap(true, false) {
			d.tellLocked(Event{Kind: EventUnitBack})
		}
		return
	}
	for _, p := range d.paths {
		if p.noUnit {
			return
		}
	}
	d.noUnitSince = 0
}

// shownLocked reports whether any path shows the unit.
func (d *Device) shownLocked() bool {
	for _, p := range d.paths {
		if p.view.up {
			return true
		}
	}
	return false
}

// NoUnit reports whether the target says that this host has no such LUN; requests then fail at once
// with ErrNoUnit, until a path shows the unit again.
func (d *Device) NoUnit() bool { return d.noUnit.Load() }

// noUnitError ends a request while the unit is given up.
func (d *Device) noUnitError() error { return d.noPathError(fmt.Errorf("initiator: %w", ErrNoUnit)) }
