package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/durable"
	"github.com/gemel-storage/gemel/internal/keylock"
)

// host is this worker, or what a test puts in its place.
type host interface {
	// observe looks at what is there. It does no I/O to a LUN, so that it cannot hang with one.
	observe(ctx context.Context) (*observed, error)
	// do takes one step. Each can be repeated, and each checks right before it acts that what it
	// acts on is what was observed.
	do(ctx context.Context, s step) error
	// states tells how multipathd sees the paths of a map, by name of the disk; nil where it does
	// not answer in time.
	states(ctx context.Context, m dmMap) map[string]pathState
	// allStates is states of all maps, by their WWID.
	allStates(ctx context.Context) map[string]map[string]pathState
	// device returns the path of a map's block device in this process's own mount namespace.
	device(ctx context.Context, m dmMap) (string, error)
	// events tells of what the kernel tells about sessions, paths and maps, until the context ends
	// or there is no subscription.
	events(ctx context.Context, tell func(change)) error
	// answers tells whether somebody accepts connections at a portal.
	answers(ctx context.Context, portal netip.AddrPort) bool
}

// pathState is a path as multipathd sees it.
type pathState struct {
	current bool   // in the group that I/O goes to, and not failed
	usable  bool   // its checker says so
	text    string // in multipathd's words
	prio    int    // its priority
	group   int    // the map's path group that it is in
}

// mixed tells whether a group of a map has usable paths of different priorities. I/O goes to all
// paths of a group: such a group sends a part of it to the node that has to forward it. multipathd
// makes groups when paths come and go, and leaves them alone when priorities change (settings).
func mixed(states map[string]pathState) bool {
	prios := map[int]int{}
	for _, s := range states {
		if p, ok := prios[s.group]; s.usable && ok && p != s.prio {
			return true
		}
		if s.usable {
			prios[s.group] = s.prio
		}
	}
	return false
}

// split tells whether usable paths of one priority to one portal are in several groups: I/O would
// go to a part of them only. Of two portals they may be, while neither node is the better one.
func split(u unit, o *observed, states map[string]pathState) bool {
	for _, portal := range u.portals {
		groups := map[int]int{} // by priority
		for _, s := range u.sessionsTo(portal, o) {
			d := o.disk(goal{unit: u}.address(s))
			if d == nil || !states[d.name].usable {
				continue
			}
			st := states[d.name]
			if g, ok := groups[st.prio]; ok && g != st.group {
				return true
			}
			groups[st.prio] = st.group
		}
	}
	return false
}

// constPrio is what "prio const" gives every path, and multipathd takes where ALUA fails when it
// first sees a path ("emergency fallback"). "prio alua" gives it to nothing that is active.
const constPrio = 1

// Config of an Attacher.
type Config struct {
	// Dir holds a record per attachment. It must outlive this process and be the same for every one
	// after it.
	Dir string
	// HostProc is the folder in proc of the worker's first process, whose namespaces are the
	// worker's: /proc/1, or where a container sees that.
	HostProc string
	Deadline time.Duration // of I/O while no path serves; default 30 s
	Log      *slog.Logger
}

// Attacher implements attach.Attacher.
type Attacher struct {
	cfg     Config
	log     *slog.Logger
	host    host
	volumes keylock.Set
	targets keylock.Set

	mu     sync.Mutex
	logins map[netip.AddrPort]failure // that failed last

	checkMu sync.Mutex
	checked time.Time
	lacks   error
}

var _ attach.Attacher = (*Attacher)(nil)

// failure is what became of the last logins to a portal.
type failure struct {
	at      time.Time
	times   int // in a row
	err     error
	refused bool // because of its credentials
}

// again is how long a portal that could not be logged in to is left alone by calls that have
// another path; no call waits for a repair, so a repair waits longer.
const (
	again     = 20 * time.Second
	againMost = 40 * time.Second
)

func (a *Attacher) failure(portal netip.AddrPort) (f failure, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, ok = a.logins[portal]
	return f, ok
}

// over is when it is no longer minded.
func (f failure) over(heal bool) time.Time {
	if heal && f.times > 1 {
		return f.at.Add(againMost)
	}
	return f.at.Add(again)
}

// New checks the configuration and makes the folder.
func New(c Config) (*Attacher, error) {
	if c.HostProc == "" {
		c.HostProc = "/proc/1"
	}
	if c.Deadline == 0 {
		c.Deadline = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	l, err := newLinux(c)
	if err != nil {
		return nil, err
	}
	return newAttacher(c, l)
}

func newAttacher(c Config, h host) (*Attacher, error) {
	if !filepath.IsAbs(c.Dir) || c.Deadline < 0 {
		return nil, errors.New("kernel attach: Dir must be absolute, Deadline not negative")
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("kernel attach: %w", err)
	}
	if err := durable.RemoveTemp(c.Dir); err != nil {
		return nil, fmt.Errorf("kernel attach: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Attacher{cfg: c, log: c.Log, host: h, logins: map[netip.AddrPort]failure{}}, nil
}

// Attach implements attach.Attacher.
func (a *Attacher) Attach(ctx context.Context, want attach.Attachment) (string, error) {
	u, err := parse(want)
	if err != nil {
		return "", err
	}
	u.know()
	if _, err := a.path(want.VolumeID); err != nil {
		return "", err
	}
	defer a.volumes.Lock(want.VolumeID)()
	r, err := a.load(want.VolumeID)
	if err != nil {
		return "", err
	}
	// The record comes before all steps and needs the ID of this boot. What to do is planned from
	// observations of converge: it may have to wait for the lock on the target.
	o, err := a.host.observe(ctx)
	if err != nil {
		return "", err
	}
	same := r != nil && r.Attachment.Same(want)
	fresh := !same || r.BootID != o.boot
	if r != nil && !same {
		if r.BootID == o.boot && want.Generation < r.Attachment.Generation {
			return "", fmt.Errorf("%w: publish %d of volume %s was superseded by %d", attach.ErrInvalid, want.Generation, want.VolumeID, r.Attachment.Generation)
		}
		a.log.Warn("removing what an earlier attachment left", "volume", want.VolumeID, "generation", r.Attachment.Generation)
		if o, err = a.detach(ctx, r, true); err != nil {
			return "", fmt.Errorf("tear down the earlier attachment: %w", err)
		}
	}
	if !fresh && r.Attachment.SessionCount() != want.SessionCount() {
		// First: who heals goes by the record, and others read from it what the volume needs.
		r.Attachment.Sessions = want.Sessions
		if err := a.save(r); err != nil {
			return "", err
		}
	}
	if fresh {
		// From here on Detach finds everything.
		r = &record{Version: want.RecordVersion(), BootID: o.boot, Attachment: want, Partial: true}
		if err := a.save(r); err != nil {
			return "", err
		}
	}
	device, err := a.build(ctx, goal{unit: u, fresh: fresh}, o)
	if err != nil && fresh {
		// The caller's context may have ended, and what is half made must go all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		_, undone := a.converge(ctx, goal{unit: u, absent: true})
		err = errors.Join(err, undone)
	}
	if err != nil {
		return "", err
	}
	if chap := authenticates(want); r.Partial || r.CHAP != chap {
		r.Partial, r.CHAP = false, chap
		if err := a.save(r); err != nil {
			return "", err
		}
	}
	a.log.Info("attached", "volume", want.VolumeID, "generation", want.Generation, "device", device)
	return device, nil
}

// build makes the device. o is what the worker was like before.
func (a *Attacher) build(ctx context.Context, g goal, o *observed) (string, error) {
	// A map of this WWID without a record: from a publish whose record was lost. A process
	// that uses it must not come to use this one.
	if all := o.mapsOf(g.unit); len(all) > 0 && g.fresh {
		a.log.Warn("removing a map that has no record", "volume", g.volume, "map", all[0].kernel, "users", all[0].users())
		if _, err := a.converge(ctx, goal{unit: g.unit, absent: true, force: true, keep: true}); err != nil {
			return "", err
		}
	}
	m, err := a.present(ctx, g)
	if err != nil {
		return "", err
	}
	return a.host.device(ctx, *m)
}

// present converges to a goal that has a map, and returns the map as it was observed last.
func (a *Attacher) present(ctx context.Context, g goal) (*dmMap, error) {
	o, err := a.converge(ctx, g)
	if err != nil {
		return nil, err
	}
	m := o.deviceOf(g.unit)
	if m == nil {
		return nil, fmt.Errorf("%w: %s has no map", attach.ErrFailed, g.volume)
	}
	return m, nil
}

// Detach implements attach.Attacher.
func (a *Attacher) Detach(ctx context.Context, volumeID string) error {
	return a.take(ctx, volumeID, false)
}

// Purge takes an attachment away, no matter who uses it: for a LUN that is lost. What has not been
// written yet is lost.
func (a *Attacher) Purge(ctx context.Context, volumeID string) error {
	return a.take(ctx, volumeID, true)
}

func (a *Attacher) take(ctx context.Context, volumeID string, force bool) error {
	if _, err := a.path(volumeID); err != nil {
		return err
	}
	defer a.volumes.Lock(volumeID)()
	r, err := a.load(volumeID)
	if err != nil || r == nil {
		return err
	}
	_, err = a.detach(ctx, r, force)
	return err
}

// detach returns the last observation.
func (a *Attacher) detach(ctx context.Context, r *record, force bool) (*observed, error) {
	u, err := parse(r.Attachment)
	if err != nil {
		return nil, err
	}
	if !r.Partial {
		r.Partial = true
		if err := a.save(r); err != nil {
			return nil, err
		}
	}
	o, err := a.converge(ctx, goal{unit: u, absent: true, force: force})
	if err != nil {
		return nil, err
	}
	a.log.Info("detached", "volume", u.volume, "generation", u.generation, "forced", force)
	return o, nil
}

// Resize implements attach.Attacher.
func (a *Attacher) Resize(ctx context.Context, volumeID string) (int64, error) {
	if _, err := a.path(volumeID); err != nil {
		return 0, err
	}
	defer a.volumes.Lock(volumeID)()
	r, err := a.load(volumeID)
	if err != nil {
		return 0, err
	}
	if r == nil {
		return 0, fmt.Errorf("%w: %s", attach.ErrNotAttached, volumeID)
	}
	g, err := r.goal()
	if err != nil {
		return 0, err
	}
	g.resize = true
	m, err := a.present(ctx, g)
	if err != nil {
		return 0, err
	}
	return m.size, nil
}
