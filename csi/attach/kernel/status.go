package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/alua"
)

// Status implements attach.Attacher.
func (a *Attacher) Status(ctx context.Context, volumeID string) (attach.Status, error) {
	r, err := a.load(volumeID)
	if err != nil {
		return attach.Status{}, err
	}
	if r == nil {
		return attach.Status{}, fmt.Errorf("%w: %s", attach.ErrNotAttached, volumeID)
	}
	st := attach.Status{Attachment: r.Attachment}
	u, err := parse(r.Attachment)
	if err != nil {
		return st, err
	}
	o, err := a.host.observe(ctx)
	if err != nil {
		return st, err
	}
	m := o.deviceOf(u)
	st.Paths = allPaths(u, o, func(m dmMap) map[string]pathState { return a.host.states(ctx, m) }, a.lastError)
	switch {
	case m == nil && u.striped():
		return st, fmt.Errorf("%w: %s has no striped map", attach.ErrFailed, volumeID)
	case m == nil:
		return st, fmt.Errorf("%w: %s has no multipath map", attach.ErrFailed, volumeID)
	}
	if st.Device, err = a.host.device(ctx, *m); err != nil {
		return st, err
	}
	st.Rdev, st.Size = m.rdev, m.size
	if r.BootID != o.boot {
		return st, fmt.Errorf("%w: %s is from before the last boot", attach.ErrFailed, volumeID)
	}
	return st, wellMade(u, o)
}

// wellMade looks for what keeps the maps of an attachment from serving.
func wellMade(u unit, o *observed) error {
	for _, m := range o.mapsOf(u) {
		switch {
		case m.suspended:
			return fmt.Errorf("%w: the map /dev/%s of %s is suspended", attach.ErrFailed, m.kernel, u.volume)
		case len(m.slaves) == 0:
			return fmt.Errorf("%w: the map /dev/%s of %s has lost all its paths", attach.ErrFailed, m.kernel, u.volume)
		}
	}
	if !u.striped() {
		return nil
	}
	want, err := goal{unit: u}.table(o, o.stripedOf(u.volume).size)
	if err == nil && want != o.stripedOf(u.volume).table {
		err = fmt.Errorf("%w: the striped map of %s is made of other LUNs, or in another order", attach.ErrFailed, u.volume)
	}
	return err
}

// allPaths are the paths of all LUNs of an attachment.
func allPaths(u unit, o *observed, ask func(dmMap) map[string]pathState, failed func(netip.AddrPort) error) (out []attach.Path) {
	for i, l := range u.each() {
		for _, p := range paths(l, o, o.mapOf(l.id), ask, failed) {
			p.Leg = i
			out = append(out, p)
		}
	}
	return out
}

func (a *Attacher) lastError(portal netip.AddrPort) error {
	f, _ := a.failure(portal)
	return f.err
}

// Paths are those of all attachments that are whole or should be, at one look and one question to
// multipathd.
func (a *Attacher) Paths(ctx context.Context) (out []attach.Status, err error) {
	o, err := a.host.observe(ctx)
	if err != nil {
		return nil, err
	}
	known := a.host.allStates(ctx)
	// After the look: the paths of an attachment that is being removed meanwhile are not reported
	// as lost.
	read, _, err := a.entries()
	if err != nil {
		return nil, err
	}
	for _, e := range read {
		if e.record.Partial || e.record.BootID != o.boot {
			continue
		}
		u := e.goal.unit
		out = append(out, attach.Status{Attachment: e.record.Attachment,
			Paths: allPaths(u, o, func(m dmMap) map[string]pathState { return known[m.id.wwid()] }, a.lastError)})
	}
	return out, nil
}

// sysfsStates are the ALUA states in the words of the kernel (drivers/scsi/scsi_sysfs.c).
var sysfsStates = map[string]alua.State{"active/optimized": alua.Optimized, "active/non-optimized": alua.NonOptimized,
	"standby": alua.Standby, "unavailable": alua.Unavailable, "transitioning": alua.Transitioning}

// paths describes the path of every session to every portal. What multipathd does not say is
// concluded from what the kernel shows.
func paths(u unit, o *observed, m *dmMap, ask func(dmMap) map[string]pathState, failed func(netip.AddrPort) error) []attach.Path {
	var known map[string]pathState
	if m != nil {
		known = ask(*m)
	}
	g := goal{unit: u}
	out := make([]attach.Path, len(u.portals)*u.count())
	best := -1
	for i := range out {
		p, portal, number := &out[i], u.portals[i/u.count()], i%u.count()
		*p = attach.Path{Session: number, Portal: portal.String(), State: alua.Unavailable}
		all := u.sessionsTo(portal, o)
		if number >= len(all) {
			p.LastError = "no session"
			if f := failed(portal); f != nil {
				p.LastError, p.Refused = fmt.Sprintf("no session: %v", f), errors.Is(f, attach.ErrCredentials)
			}
			continue
		}
		s := all[number]
		if !s.connected {
			p.LastError = "the session is " + s.state
			continue
		}
		d := o.disk(g.address(s))
		switch {
		case d == nil:
			p.LastError = "the LUN does not show up at this portal"
			continue
		case d.id != u.id:
			p.LastError = fmt.Sprintf("LUN number leads to another device (%s)", d.id)
			continue
		case m == nil || !slices.Contains(m.slaves, d.name):
			p.LastError = fmt.Sprintf("%s is not in the multipath map", d.name)
			continue
		case d.state != "running":
			p.LastError = fmt.Sprintf("%s is %s", d.name, d.state)
			continue
		}
		if state, ok := sysfsStates[d.access]; ok {
			p.State = state
		}
		if d.handler != "alua" {
			p.State, p.NoALUA = alua.Optimized, true // as the kernel treats it
			p.LastError = fmt.Sprintf("the kernel's ALUA handler is not attached to %s: I/O may take the longer way", d.name)
		}
		ps, ok := known[d.name]
		if ok && !p.NoALUA && ps.prio == constPrio && (p.State == alua.Optimized || p.State == alua.NonOptimized) {
			p.NoALUA = true
			p.LastError = fmt.Sprintf("multipathd does not ask for the ALUA state of %s (emergency fallback to prio const): I/O may take the longer way", d.name)
		}
		if ok && !ps.usable {
			p.LastError = fmt.Sprintf("multipathd: %s is %s", d.name, ps.text)
			continue
		}
		p.Connected, p.Current = true, ok && ps.current
		if p.State == alua.Optimized && (best < 0 || out[best].State != alua.Optimized) || best < 0 && p.State == alua.NonOptimized {
			best = i
		}
	}
	// Before the first I/O, and without multipathd: it will go to the best path, and to those of
	// the same node that are as good.
	if best >= 0 && !slices.ContainsFunc(out, func(p attach.Path) bool { return p.Current }) {
		for i := range out {
			p := &out[i]
			p.Current = p.Connected && p.Portal == out[best].Portal && p.State == out[best].State
		}
	}
	return out
}
