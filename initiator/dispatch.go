package initiator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Delays between attempts on a path that answers BUSY and the like, and how often outcomes of which
// it is unknown whether they are temporary are tried again.
const (
	retryFirst = 5 * time.Millisecond
	retryMost  = 50 * time.Millisecond
	maxLimited = 5
	maxQuick   = 16 // immediate retries (unit attentions) before delays begin
)

var errCanceled = errors.New("canceled")

// dispatch sends a piece down a current path, or parks it while none serves.
func (d *Device) dispatch(p *piece) {
	for {
		if p.io.canceled.Load() {
			p.finish(fmt.Errorf("%w: %w", ErrAborted, errCanceled))
			return
		}
		if d.aborted.Load() || d.noUnit.Load() {
			p.finish(d.parkedError(p))
			return
		}
		to := d.cur.Load()
		if to == nil {
			d.park(p, 0)
			return
		}
		path := to.next()
		sess := path.sess.Load()
		if sess == nil {
			d.park(p, retryFirst) // the path is going down; its runner is about to say so
			return
		}
		p.path, p.sess = path, sess
		path.begin()
		err := sess.Submit(&p.cmd)
		if err == nil {
			return
		}
		path.end()
		if !errors.Is(err, ErrSessionLost) {
			p.finish(err)
			return
		}
		d.sessionLost(path, sess, err)
	}
}

// pieceDone is every piece's callback, on the reader of its session as a rule.
func pieceDone(c *Command) {
	p := c.User.(*piece)
	p.path.end()
	if c.Err == nil && c.Status == StatusGood {
		if p.want > 0 && c.Got != p.want {
			p.finish(fmt.Errorf("%w: a READ with status GOOD returned %d of %d bytes", ErrProtocol, c.Got, p.want))
			return
		}
		p.finish(nil)
		return
	}
	p.io.d.refused(p)
}

// refused acts on any other outcome than GOOD.
func (d *Device) refused(p *piece) {
	c := &p.cmd
	o := outcome{err: c.Err, status: c.Status}
	if c.Err == nil && c.Status == StatusCheckCondition {
		o.sense = ParseSense(c.Sense)
	}
	v := decide(o)
	d.observe(p.path, p.sess, v, o)
	p.lastErr = c.Err
	if c.Err == nil {
		p.lastErr = &SCSIError{Opcode: c.CDB[0], Status: c.Status, Sense: o.sense}
	}
	if p.io.canceled.Load() && v.act != actDone {
		v.act = actFail
	}
	p.attempt++
	d.startClock(p.io)
	switch v.act {
	case actDone:
		p.finish(nil)
	case actFail:
		p.finish(p.lastErr)
	case actRetry:
		if p.attempt <= maxQuick {
			d.dispatch(p)
			return
		}
		d.park(p, backoff(p.attempt-maxQuick))
	case actElsewhere:
		if p.attempt <= maxQuick {
			d.dispatch(p)
			return
		}
		d.park(p, backoff(p.attempt-maxQuick))
	case actLater:
		d.park(p, backoff(p.attempt))
	case actLimited:
		if p.limited++; p.limited > maxLimited {
			p.finish(p.lastErr)
			return
		}
		d.park(p, backoff(p.attempt))
	}
}

// startClock begins a request's deadline at its first refusal.
func (d *Device) startClock(io *IO) {
	io.deadline.CompareAndSwap(0, monotonic()+int64(d.cfg.Deadline))
}

// backoff is 5 ms doubling to 50 ms, less up to a quarter so that retries do not march in step.
func backoff(attempt int) time.Duration {
	t := retryMost
	if attempt < 5 {
		t = min(retryFirst<<max(attempt-1, 0), retryMost)
	}
	return t - rand.N(t/4)
}

// park keeps a piece until a path serves, and for delay at least.
func (d *Device) park(p *piece, delay time.Duration) {
	p.path, p.sess = nil, nil
	d.startClock(p.io)
	p.notBefore = 0
	if delay > 0 {
		p.notBefore = monotonic() + int64(delay)
	}
	d.mu.Lock()
	d.parked = append(d.parked, p)
	d.mu.Unlock()
	d.unpark()
}

// unpark wakes the parking attendant.
func (d *Device) unpark() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// attend is the goroutine that sends parked pieces on and fails those that waited too long.
func (d *Device) attend(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		ready, failed, next := d.sortParked(monotonic())
		for _, p := range failed {
			p.finish(d.parkedError(p))
		}
		for _, p := range ready {
			d.dispatch(p)
		}
		timer.Reset(next)
		select {
		case <-d.wake:
		case <-timer.C:
		case <-ctx.Done():
			return // Close has seen to it that no request is left
		}
	}
}

// sortParked takes out what can go and what must fail; next is when to look again.
func (d *Device) sortParked(now int64) (ready, failed []*piece, next time.Duration) {
	next = time.Hour
	serving := d.cur.Load() != nil
	d.mu.Lock()
	defer d.mu.Unlock()
	keep := d.parked[:0]
	for _, p := range d.parked {
		deadline := p.io.deadline.Load()
		switch {
		case d.aborted.Load() || p.io.canceled.Load() || d.noUnit.Load() || now >= deadline:
			failed = append(failed, p)
			continue
		case (p.notBefore == 0 || now >= p.notBefore) && serving:
			ready = append(ready, p)
			continue
		case p.notBefore != 0 && now < p.notBefore:
			next = min(next, time.Duration(p.notBefore-now))
		}
		next = min(next, time.Duration(deadline-now))
		keep = append(keep, p)
	}
	clear(d.parked[len(keep):])
	d.parked = keep
	return ready, failed, next
}

// parkedError says why a parked piece ends.
func (d *Device) parkedError(p *piece) error {
	switch {
	case p.io.canceled.Load():
		return fmt.Errorf("%w: %w", ErrAborted, errCanceled)
	case d.aborted.Load():
		return fmt.Errorf("initiator: device %s: %w", d.cfg.Target, ErrClosed)
	case d.noUnit.Load():
		return d.noUnitError()
	}
	err := d.noPathError(fmt.Errorf("%w within %v", ErrNoPath, d.cfg.Deadline))
	if p.lastErr != nil {
		err = fmt.Errorf("%w; last answer: %w", err, p.lastErr)
	}
	return err
}

// cancel aborts a request: parked pieces end at once, those in flight when the target has confirmed
// the abort.
func (d *Device) cancel(io *IO, cause error) {
	io.canceled.Store(true)
	d.unpark()
	for _, path := range d.paths {
		if sess := path.sess.Load(); sess != nil {
			sess.abortMatching(func(c *Command) bool {
				p, ok := c.User.(*piece)
				return ok && p.io == io
			}, fmt.Errorf("%w: %w", ErrAborted, cause))
		}
	}
}
