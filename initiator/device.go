package initiator

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/internal/alua"
)

// Config describes a Device. Zero fields take the defaults.
type Config struct {
	InitiatorName string
	// ISID is the base, by default random: session j to portal i of n uses it with its last two
	// bytes (the qualifier, RFC 7143 §11.12.5) increased by j*n+i, so that no two sessions of the
	// device reinstate each other.
	ISID    [6]byte
	Target  string
	Portals []string // host:port, 1 to 64
	// Sessions is how many sessions the device makes to each portal, 1..MaxSessions, default 1. All
	// sessions to the portal that serves carry I/O, as far as the load keeps more than two commands
	// in flight. Each takes about 0.4 MiB and counts against the target's limit of sessions.
	Sessions int
	LUN      uint16 // 0..16383
	// WWID is the logical unit's NAA designator in hexadecimal ("naa." may precede it). Every path
	// is checked against it (VPD page 83h) after every login; one that shows another unit is never
	// used. Empty: the first path's is taken.
	WWID                     string
	Auth, MutualAuth         *CHAP
	CHAPAlgorithms           []int // see SessionConfig
	HeaderDigest, DataDigest bool
	QueueDepth               int // per session, default 128
	MaxRecvData              int // see SessionConfig
	// Deadline is how long a request may wait for a serving path, from its first refusal. Default
	// 30 s.
	Deadline time.Duration
	// NoUnitAfter is how long the target has to say that there is no such LUN, with no path that
	// shows it, before the device believes it and requests fail at once (ErrNoUnit) instead of
	// waiting for Deadline. A LUN that is unmapped and mapped again sooner costs no error. At least
	// 100 ms, default 5 s.
	NoUnitAfter time.Duration
	// Poll is how often access states are read without a reason. Default 10 s.
	Poll   time.Duration
	Timers Timers
	Log    *slog.Logger
	// Events, if set, is called with what happens to paths and unit. It must not block and must not
	// call the device.
	Events func(Event)
	Dial   func(ctx context.Context, network, addr string) (net.Conn, error)
}

// EventKind is the kind of an Event.
type EventKind string

// Kinds of events.
const (
	EventPathUp        EventKind = "path up"
	EventPathDown      EventKind = "path down"
	EventState         EventKind = "access state"
	EventRoute         EventKind = "route" // I/O goes to another portal; an empty Portal means none
	EventCapacity      EventKind = "capacity changed"
	EventUnitAttention EventKind = "unit attention"
	EventLogoutRequest EventKind = "logout requested"
	EventNoUnit        EventKind = "the target has no such LUN; requests now fail at once" // Portal said so last, with Err
	EventUnitBack      EventKind = "the target has the LUN again"
)

// Event is something that happened to a path or the unit.
type Event struct {
	Kind    EventKind
	Portal  string
	Session int        // see PathStatus; EventRoute: the first that carries I/O
	State   alua.State // EventState
	Size    int64      // EventCapacity: the new size in bytes
	Sense   Sense      // EventUnitAttention
	Err     error      // EventPathDown: why; EventNoUnit: what was answered
}

// PathStatus is the state of one path.
type PathStatus struct {
	Portal    string
	Session   int        // number of the session to this portal, from 0
	Connected bool       // logged in and verified
	Current   bool       // I/O goes here; several sessions to one portal may be current
	State     alua.State // of its target port group, if Connected
	Preferred bool
	Group     uint16 // target port group; 0 if the target has none
	LastError error  // why it last went down or does not come up
}

// Device is one logical unit over all its paths. Its methods are safe for concurrent use.
type Device struct {
	cfg    Config
	log    *slog.Logger
	paths  []*path // of portals in their order, the sessions to each together; fixed
	zeroes []byte  // one block of zeroes, for WRITE SAME; fixed once the block size is known

	cur atomic.Pointer[carriers] // where I/O goes; nil: nowhere
	geo atomic.Pointer[geometry]

	noUnit      atomic.Bool // the target says that there is no such LUN: requests fail
	noUnitSince int64       // under mu: since when paths say so and none shows it; 0: they do not

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a path changes
	wwid    string
	parked  []*piece
	closed  bool
	active  int // requests between Submit and Done
	idle    chan struct{}
	events  []Event // to be delivered when mu is released

	aborted atomic.Bool // Close gave up waiting: requests fail
	wake    chan struct{}
	stop    func()
	wg      sync.WaitGroup
}

// minNoUnitAfter is well above what an entry of the metadata log takes from one node to the other.
const minNoUnitAfter = 100 * time.Millisecond

func (c Config) withDefaults() (Config, error) {
	if len(c.Portals) == 0 || len(c.Portals) > 64 {
		return c, fmt.Errorf("initiator: %d portals, must be 1 to 64", len(c.Portals))
	}
	if c.Sessions == 0 {
		c.Sessions = 1
	}
	if c.Sessions < 1 || c.Sessions > MaxSessions {
		return c, fmt.Errorf("initiator: %d sessions to each portal, must be 1 to %d", c.Sessions, MaxSessions)
	}
	if c.LUN > 0x3fff {
		return c, fmt.Errorf("initiator: lun %d is beyond 16383", c.LUN)
	}
	if c.Target == "" {
		return c, errors.New("initiator: the target name is missing")
	}
	c.WWID = strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(c.WWID, "naa."), "0x"))
	if _, err := hex.DecodeString(c.WWID); err != nil {
		return c, fmt.Errorf("initiator: wwid %q is not hexadecimal", c.WWID)
	}
	if c.Deadline == 0 {
		c.Deadline = 30 * time.Second
	}
	if c.Poll == 0 {
		c.Poll = 10 * time.Second
	}
	if c.Deadline < 0 || c.Poll < 0 {
		return c, errors.New("initiator: the deadline and the poll interval must not be negative")
	}
	if c.NoUnitAfter == 0 {
		c.NoUnitAfter = 5 * time.Second
	}
	if c.NoUnitAfter < minNoUnitAfter {
		return c, fmt.Errorf("initiator: no-unit bound %v is below %v: a LUN that is mapped again would become an I/O error", c.NoUnitAfter, minNoUnitAfter)
	}
	if c.ISID == ([6]byte{}) {
		c.ISID = randomISID()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Open connects all portals and returns as soon as one path serves, having given the others up to a
// second to come up as well. Paths that are not there yet are tried until Close. Open fails when
// ctx or the deadline ends first, when every path has failed for a reason that trying again does
// not change, or when the target says that there is no such LUN (NoUnitAfter).
func Open(ctx context.Context, cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Device{cfg: cfg, log: cfg.Log, wwid: cfg.WWID, changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	for i := range cfg.Portals {
		for j := range cfg.Sessions {
			p, err := newPath(d, i, j)
			if err != nil {
				return nil, err
			}
			d.paths = append(d.paths, p)
		}
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = cancel
	for _, p := range d.paths {
		d.wg.Go(func() { p.run(run) })
	}
	d.wg.Go(func() { d.attend(run) })
	if err := d.awaitFirst(ctx); err != nil {
		_ = d.Close(ctx)
		return nil, err
	}
	return d, nil
}

// grace is how long Open waits for further paths after the first.
const grace = time.Second

func (d *Device) awaitFirst(ctx context.Context) error {
	deadline := time.NewTimer(d.cfg.Deadline)
	defer deadline.Stop()
	patience := time.NewTimer(grace)
	patience.Stop()
	defer patience.Stop()
	waiting := false
	for {
		d.mu.Lock()
		changed := d.changed
		up, tried, hopeless := 0, 0, 0
		for _, p := range d.paths {
			if p.view.up && p.size > 0 {
				up++
			}
			if p.tried {
				tried++
			}
			if p.hopeless {
				hopeless++
			}
		}
		d.mu.Unlock()
		switch {
		case up > 0 && tried == len(d.paths):
			return nil
		case hopeless == len(d.paths):
			return d.noPathError(ErrNoPath)
		case d.noUnit.Load():
			return d.noUnitError()
		case up > 0 && !waiting:
			waiting = true
			patience.Reset(grace)
		}
		select {
		case <-changed:
		case <-patience.C:
			return nil
		case <-deadline.C:
			return d.noPathError(fmt.Errorf("%w within %v", ErrNoPath, d.cfg.Deadline))
		case <-ctx.Done():
			return d.noPathError(fmt.Errorf("%w: %w", ErrNoPath, context.Cause(ctx)))
		}
	}
}

// noPathError adds what each path last said. Sessions to one portal that say the same are named
// once.
func (d *Device) noPathError(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var said []string
	for _, p := range d.paths {
		if p.session == 0 {
			said = said[:0]
		}
		var what error
		switch {
		case p.lastErr != nil && !p.view.up:
			what = p.lastErr
		case p.view.up:
			what = fmt.Errorf("access state %#x", byte(p.view.state))
		default:
			what = errNoAnswer
		}
		if slices.Contains(said, what.Error()) {
			continue
		}
		said = append(said, what.Error())
		err = fmt.Errorf("%w; %s: %w", err, p.name(), what)
	}
	return err
}

var errNoAnswer = errors.New("no answer yet")

// Size is the capacity in bytes, the least that any path has reported last.
func (d *Device) Size() int64 { return d.geo.Load().size }

// BlockSize is the logical block size in bytes; offsets and lengths are multiples of it.
func (d *Device) BlockSize() int { return d.geo.Load().blockSize }

// WWID is the unit's designator as lower-case hexadecimal.
func (d *Device) WWID() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wwid
}

// Paths reports every path, in the order of Config.Portals, and of each portal in that of sessions.
func (d *Device) Paths() []PathStatus {
	cur := d.cur.Load().carrying()
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]PathStatus, len(d.paths))
	for i, p := range d.paths {
		list[i] = PathStatus{Portal: p.portal, Session: p.session, Connected: p.view.up, Current: slices.Contains(cur, p),
			State: p.view.state, Preferred: p.preferred, Group: p.id.group, LastError: p.lastErr}
	}
	return list
}

// Rescan reads the capacity on every path that is up and returns the size in bytes.
func (d *Device) Rescan(ctx context.Context) (int64, error) {
	var errs []error
	for _, p := range d.paths {
		if sess := p.sess.Load(); sess != nil {
			if err := p.readCapacity(ctx, sess); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.name(), err))
			}
		}
	}
	return d.Size(), errors.Join(errs...)
}

// enter and leave count requests.
func (d *Device) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("initiator: device %s: %w", d.cfg.Target, ErrClosed)
	}
	d.active++
	return nil
}

func (d *Device) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.active--; d.active == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// Close refuses new requests, waits for those under way, logs out of every portal and waits for all
// goroutines. When ctx ends first, what is left fails with ErrClosed or ErrSessionLost and sessions
// are cut; Close still waits for its goroutines.
func (d *Device) Close(ctx context.Context) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		d.wg.Wait()
		return nil
	}
	d.closed = true
	idle := make(chan struct{})
	if d.active == 0 {
		close(idle)
	} else {
		d.idle = idle
	}
	d.mu.Unlock()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = fmt.Errorf("initiator: close of %s: requests are still in progress: %w", d.cfg.Target, context.Cause(ctx))
		d.aborted.Store(true)
		for _, p := range d.paths {
			p.abandon()
		}
		d.unpark()
		<-idle
	}
	d.stop()
	d.wg.Wait()
	return err
}
