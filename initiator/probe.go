package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/internal/alua"
)

// This file is what a path asks on its own: identification, access states and capacity.

// notServing reports an error that is about the access state, not about the path.
func notServing(err error) bool {
	var se *SCSIError
	return errors.As(err, &se) && se.Status == StatusCheckCondition && decideSense(se.Sense).note == noteNotServing
}

// query runs a command of the path's own, following unit attentions and BUSY.
func (p *path) query(ctx context.Context, sess *Session, cdb [16]byte, alloc int) ([]byte, error) {
	in := make([]byte, alloc)
	var err error
	for attempt := 1; attempt <= 40; attempt++ {
		var r Result
		r, err = sess.Execute(ctx, p.d.cfg.LUN, cdb[:], nil, in)
		if err != nil {
			return nil, err
		}
		if r.Status == StatusGood {
			return in[:r.Got], nil
		}
		err = r.Err(cdb[0])
		v := decide(outcome{status: r.Status, sense: r.Sense()})
		if v.act == actFail || v.act == actElsewhere {
			return nil, err
		}
		p.d.observe(p, sess, v, outcome{status: r.Status, sense: r.Sense()})
		if v.act == actRetry {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-sess.Done():
			return nil, sess.Err()
		case <-time.After(backoff(attempt)):
		}
	}
	return nil, err
}

// verify reads VPD page 83h and refuses another unit; absent tells of its errors that there is
// none.
func (p *path) verify(ctx context.Context, sess *Session) error {
	b, err := p.query(ctx, sess, cdbInquiry(vpdDeviceID, true, maxInquiryAlloc), maxInquiryAlloc)
	switch {
	case errors.Is(err, ErrIllegalRequest): // there is no such page, as where there is no unit
		return p.absence(ctx, sess, fmt.Errorf("device identification: %w", err))
	case err != nil:
		return fmt.Errorf("device identification: %w", err)
	case len(b) > 0 && b[0]>>5 != 0: // peripheral qualifier other than 000b: no unit is connected at this LUN (SPC-4 table 175)
		return p.absence(ctx, sess, fmt.Errorf("lun %d: no logical unit here (peripheral qualifier %d)", p.d.cfg.LUN, b[0]>>5))
	}
	id, err := parseDeviceID(b)
	if err != nil {
		return err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if id.wwid == "" {
		return fmt.Errorf("%w: lun %d shows no designator", ErrWrongUnit, p.d.cfg.LUN)
	}
	if p.d.wwid == "" {
		p.d.wwid = id.wwid
	}
	if id.wwid != p.d.wwid {
		return fmt.Errorf("%w: lun %d is %s, expected %s", ErrWrongUnit, p.d.cfg.LUN, id.wwid, p.d.wwid)
	}
	p.id = id
	return nil
}

// readStates asks for the access states (REPORT TARGET PORT GROUPS) and takes that of the path's
// own group: a node knows best about itself. It is noted for the other sessions to the portal too,
// so that I/O moves with all of them at once. A path that refused a command is tried again when its
// state serves, or at the pace of polling (tick) when it is still in transition.
func (p *path) readStates(ctx context.Context, sess *Session, tick bool) error {
	state, preferred := alua.Optimized, false
	begun := monotonic()
	p.d.mu.Lock()
	id := p.id
	p.d.mu.Unlock()
	if id.hasGroup {
		b, err := p.query(ctx, sess, cdbRTPG(true), maxRTPGAlloc)
		if errors.Is(err, ErrIllegalRequest) {
			b, err = p.query(ctx, sess, cdbRTPG(false), maxRTPGAlloc)
		}
		switch {
		case isNoUnit(err):
			return fmt.Errorf("access states: %w", err)
		case errors.Is(err, ErrIllegalRequest): // a target port group, but no ALUA: every path is as good
		case err != nil:
			return fmt.Errorf("access states: %w", err)
		default:
			r, err := parseRTPG(b)
			if err != nil {
				return err
			}
			for _, g := range r.Groups {
				if g.Tag == id.group {
					state, preferred = g.State, g.Preferred
				}
			}
		}
	}
	p.d.change(func() {
		p.asking = monotonic() - begun
		for _, q := range p.d.alikeLocked(p) {
			q.setStateLocked(state)
			q.preferred = preferred
			if state == alua.Optimized || state == alua.NonOptimized || tick {
				q.view.blocked = false
			}
		}
	})
	return nil
}

// readCapacity reads size and limits. The device's size is the least of its paths', so that it
// grows only when every path has.
func (p *path) readCapacity(ctx context.Context, sess *Session) error {
	b, err := p.query(ctx, sess, cdbReadCapacity16(), readCapacityAlloc)
	if err != nil {
		return fmt.Errorf("capacity: %w", err)
	}
	c, err := parseCapacity16(b)
	if err != nil {
		return err
	}
	var l limits
	for _, page := range []byte{vpdBlockLimits, vpdProvisioning} {
		b, err := p.query(ctx, sess, cdbInquiry(page, true, maxInquiryAlloc), maxInquiryAlloc)
		if errors.Is(err, ErrIllegalRequest) {
			continue // pages are optional
		}
		if err != nil {
			return fmt.Errorf("VPD page %#02x: %w", page, err)
		}
		parseBlockLimits(b, &l)
		parseProvisioning(b, &l)
	}
	g := newGeometry(c, l)
	p.d.change(func() {
		d := p.d
		old := d.geo.Load()
		if old != nil && old.blockSize != g.blockSize {
			err = fmt.Errorf("%w: block size %d, was %d", ErrWrongUnit, g.blockSize, old.blockSize)
			return
		}
		p.size = g.size
		for _, q := range d.paths {
			if q.view.up && q.size > 0 {
				g.size = min(g.size, q.size)
			}
		}
		if old == nil {
			d.zeroes = make([]byte, g.blockSize)
		} else if old.size != g.size {
			d.tellLocked(Event{Kind: EventCapacity, Portal: p.portal, Session: p.session, Size: g.size})
		}
		d.geo.Store(g)
	})
	return err
}
