package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/internal/alua"
)

// Reconnecting waits from reconnectFirst, doubling to reconnectMost; a session that lasted longer
// than steady starts again. A path that does not serve is asked for its state every 5 to 50 ms, or
// every idlePoll while another serves.
const (
	reconnectFirst = 20 * time.Millisecond
	reconnectMost  = time.Second
	steady         = time.Second
	idlePoll       = 500 * time.Millisecond
)

// path is one portal of a device. Its runner goroutine logs in, verifies the unit, watches access
// states and reconnects.
type path struct {
	d      *Device
	portal string
	cfg    SessionConfig
	sess   atomic.Pointer[Session] // set while the path is up
	kick   chan struct{}
	wants  atomic.Uint32

	// Under Device.mu.
	view      pathView
	id        identity
	preferred bool
	size      int64 // bytes, as this path last reported; 0 before
	lastErr   error
	tried     bool // the first attempt has ended
	hopeless  bool
	noUnit    bool // over the present session, or by refusing it, it last said that there is no such LUN
}

// What the runner is asked to do.
const (
	wantALUA uint32 = 1 << iota
	wantCapacity
	wantVerify
	wantDrain
)

var errLogoutRequested = errors.New("the target requested a logout")

func newPath(d *Device, i int, portal string) (*path, error) {
	c := d.cfg
	p := &path{d: d, portal: portal, kick: make(chan struct{}, 1)}
	q := uint16(c.ISID[4])<<8 | uint16(c.ISID[5])
	q += uint16(i)
	isid := c.ISID
	isid[4], isid[5] = byte(q>>8), byte(q)
	p.cfg = SessionConfig{InitiatorName: c.InitiatorName, ISID: isid, Target: c.Target, Portal: portal, Auth: c.Auth,
		MutualAuth: c.MutualAuth, CHAPAlgorithms: c.CHAPAlgorithms, HeaderDigest: c.HeaderDigest, DataDigest: c.DataDigest, QueueDepth: c.QueueDepth,
		MaxRecvData: c.MaxRecvData, Timers: c.Timers, Log: c.Log, Dial: c.Dial, OnAsync: p.async}
	_, err := p.cfg.withDefaults()
	return p, err
}

func (p *path) want(w uint32) {
	p.wants.Or(w)
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *path) async(a Async) {
	if a.Event == AsyncLogout {
		p.want(wantDrain)
	}
}

// abandon cuts the session, for a Close that cannot wait.
func (p *path) abandon() {
	if s := p.sess.Load(); s != nil {
		s.fail(ErrClosed)
	}
}

// run keeps the path up until ctx ends.
func (p *path) run(ctx context.Context) {
	wait := reconnectFirst
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		begun := time.Now()
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		p.d.change(func() { p.endedLocked(err, time.Since(begun)) })
		p.d.log.Debug("iscsi path", "portal", p.portal, "err", err)
		if time.Since(begun) >= steady {
			wait = reconnectFirst
		}
		timer.Reset(wait)
		wait = min(2*wait, reconnectMost)
	}
}

// once logs in, verifies, serves and returns why that ended.
func (p *path) once(ctx context.Context) error {
	cfg := p.cfg
	cfg.Auth, cfg.MutualAuth = p.d.credentials()
	sess, err := Login(ctx, cfg)
	if err != nil {
		return err
	}
	defer sess.Close()
	p.wants.Store(0)
	stop := context.AfterFunc(ctx, func() { sess.fail(ErrClosed) })
	err = p.find(ctx, sess)
	if err == nil {
		err = p.readStates(ctx, sess, true)
	}
	if err == nil {
		err = p.readCapacity(ctx, sess)
	}
	if notServing(err) {
		err = nil // a node that is fenced or undecided: keep the session and watch its state
	}
	if !stop() || err != nil {
		return errors.Join(err, ctx.Err())
	}
	p.d.change(func() {
		p.view.up, p.view.blocked, p.tried, p.hopeless, p.lastErr, p.noUnit = true, false, true, false, nil, false
		p.sess.Store(sess)
		p.d.tellLocked(Event{Kind: EventPathUp, Portal: p.portal, State: p.view.state})
	})
	err = p.serve(ctx, sess)
	p.d.sessionLost(p, sess, err)
	return err
}

// serve watches a path that is up.
func (p *path) serve(ctx context.Context, sess *Session) error {
	quiet := 0 // polls in a row that found the path not serving
	if !p.serving() {
		quiet = 1 // it came up so: a node that has just started
	}
	poll := time.NewTimer(p.pollDelay(quiet))
	defer poll.Stop()
	for {
		tick := false
		select {
		case <-sess.Done():
			return sess.Err()
		case <-ctx.Done():
			return p.leave(context.WithoutCancel(ctx), sess, ErrClosed)
		case <-p.kick:
		case <-poll.C:
			tick = true
		}
		wants := p.wants.Swap(0)
		var err error
		switch {
		case wants&wantDrain != 0:
			return p.leave(ctx, sess, errLogoutRequested)
		case wants&wantVerify != 0:
			err = p.verify(ctx, sess)
		}
		if err == nil {
			err = p.readStates(ctx, sess, tick)
		}
		if notServing(err) { // access states are reported in every state, but not for a unit that does not exist
			if verr := p.verify(ctx, sess); verr != nil && !notServing(verr) {
				err = verr
			}
		}
		if err == nil && p.serving() && (wants&(wantVerify|wantCapacity) != 0 || !p.sized()) {
			err = p.readCapacity(ctx, sess)
		}
		if err != nil && ctx.Err() == nil && !notServing(err) {
			return err
		}
		if p.serving() {
			quiet = 0
		} else {
			quiet++
		}
		poll.Reset(p.pollDelay(quiet))
	}
}

// leave takes the path out of use, lets its commands end and logs out.
func (p *path) leave(ctx context.Context, sess *Session, why error) error {
	if errors.Is(why, errLogoutRequested) {
		p.d.change(func() { p.d.tellLocked(Event{Kind: EventLogoutRequest, Portal: p.portal}) })
	}
	p.d.sessionLost(p, sess, why)
	ctx, cancel := context.WithTimeout(ctx, p.d.cfg.Deadline)
	defer cancel()
	if err := sess.Logout(ctx); err != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	return why
}

func (p *path) serving() bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.view.rank() >= rankNonOptimized
}

// sized reports whether this path has reported its capacity.
func (p *path) sized() bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.size > 0
}

// notServing reports an error that is about the access state, not about the path.
func notServing(err error) bool {
	var se *SCSIError
	return errors.As(err, &se) && se.Status == StatusCheckCondition && decideSense(se.Sense).note == noteNotServing
}

func (p *path) pollDelay(quiet int) time.Duration {
	switch {
	case quiet == 0:
		return p.d.cfg.Poll
	case p.d.cur.Load() != nil && quiet > 20:
		return idlePoll
	}
	return backoff(quiet)
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
// own group: a node knows best about itself. A path that refused a command is tried again when its
// state serves, or at the pace of polling (tick) when it is still in transition.
func (p *path) readStates(ctx context.Context, sess *Session, tick bool) error {
	state, preferred := alua.Optimized, false
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
		p.setStateLocked(state)
		p.preferred = preferred
		if state == alua.Optimized || state == alua.NonOptimized || tick {
			p.view.blocked = false
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
			d.tellLocked(Event{Kind: EventCapacity, Portal: p.portal, Size: g.size})
		}
		d.geo.Store(g)
	})
	return err
}
