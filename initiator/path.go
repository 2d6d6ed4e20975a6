package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
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

// path is one session to one portal of a device. Its runner goroutine logs in, verifies the unit,
// watches access states and reconnects.
type path struct {
	d       *Device
	portal  string
	session int // its number among those to the portal
	cfg     SessionConfig
	sess    atomic.Pointer[Session] // set while the path is up
	load    atomic.Int32            // commands of requests in flight, if there are several sessions to a portal
	kick    chan struct{}
	wants   atomic.Uint32

	// Under Device.mu, except view.portal, which does not change.
	view      pathView
	askAt     int64 // when a silent session of another path asks here again
	asking    int64 // ns that the last answer about access states took
	rose      int64 // when its target port group last became the optimized one while the path was up, by the sessions' clock
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

// newPath makes session number session to portal number i.
func newPath(d *Device, i, session int) (*path, error) {
	c := d.cfg
	portal := c.Portals[i]
	p := &path{d: d, portal: portal, session: session, view: pathView{portal: i}, kick: make(chan struct{}, 1)}
	p.cfg = SessionConfig{InitiatorName: c.InitiatorName, ISID: c.isid(i, session), Target: c.Target, Portal: portal, Auth: c.Auth,
		MutualAuth: c.MutualAuth, CHAPAlgorithms: c.CHAPAlgorithms, HeaderDigest: c.HeaderDigest, DataDigest: c.DataDigest, QueueDepth: c.QueueDepth,
		MaxRecvData: c.MaxRecvData, Timers: c.Timers, Log: c.Log, Dial: c.Dial, OnAsync: p.async, OnSilent: p.silent}
	_, err := p.cfg.withDefaults()
	return p, err
}

// isid is that of a session to a portal. The first sessions have the first qualifiers, so that more
// sessions do not change theirs.
func (c *Config) isid(portal, session int) [6]byte {
	q := uint16(c.ISID[4])<<8 | uint16(c.ISID[5])
	q += uint16(session*len(c.Portals) + portal)
	isid := c.ISID
	isid[4], isid[5] = byte(q>>8), byte(q)
	return isid
}

// name of the path, for errors.
func (p *path) name() string {
	if p.d.cfg.Sessions == 1 {
		return p.portal
	}
	return fmt.Sprintf("%s session %d", p.portal, p.session)
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
		p.d.tellLocked(Event{Kind: EventPathUp, Portal: p.portal, Session: p.session, State: p.view.state})
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
		p.d.change(func() { p.d.tellLocked(Event{Kind: EventLogoutRequest, Portal: p.portal, Session: p.session}) })
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

func (p *path) leads() bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.leadsLocked(p)
}

// sized reports whether this path has reported its capacity.
func (p *path) sized() bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.size > 0
}

func (p *path) pollDelay(quiet int) time.Duration {
	switch {
	case quiet == 0:
		return p.d.cfg.Poll
	case p.d.cur.Load() != nil && quiet > 20, !p.leads():
		return idlePoll
	}
	return backoff(quiet)
}
