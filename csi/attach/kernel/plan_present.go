package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
)

// planPaths: behind every session the LUN, and nothing else that looks like it.
func planPaths(g goal, o *observed, p progress) (steps []step, err error) {
	up := g.up(o)
	if len(up) == 0 && len(g.paths(o)) == 0 {
		// Sessions that have just lost their connections get them back by themselves when a portal
		// answers.
		wait := step{do: doAwaitSession, id: g.id, sessions: g.sessions(o)}
		if len(wait.sessions) > 0 && p.done(wait) == 0 && !g.heal {
			return []step{wait}, nil
		}
		return nil, unreachable(g, o, p)
	}
	// Before the first path shows up, so that whatever find_multipaths says udev keeps others off
	// it and multipathd makes a map of it.
	if !o.claimed[g.id] {
		return []step{{do: doClaim, id: g.id}}, nil
	}
	var expected []hctl
	for _, s := range g.sessions(o) {
		expected = append(expected, g.address(s))
	}
	for _, d := range o.disksOf(g.id) {
		// Of an earlier publish under another LUN number: it leads nowhere, or to another LUN. Or
		// behind a session that the volume does not need: that may be the last path that works.
		if o.oursOn(d.at.host) && !slices.Contains(expected, d.at) && (d.at.lun != g.lun || g.served(o)) {
			steps = append(steps, step{do: doDelete, disk: d})
		}
	}
	if g.heal && g.taken() {
		return steps, nil
	}
	for _, s := range up {
		more, err := planPath(g, o, p, g.address(s))
		if err != nil && !g.heal { // else the other path may be fixed all the same; the status tells of this one
			return nil, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}

// served tells whether the map of the LUN, if there is one, has a path that works among those that
// it should have.
func (g goal) served(o *observed) bool {
	m := o.mapOf(g.id)
	return m == nil || slices.ContainsFunc(g.up(o), func(s session) bool {
		d := o.disk(g.address(s))
		return d != nil && d.id == g.id && slices.Contains(m.slaves, d.name)
	})
}

// planPath looks at one address. LUN numbers are used again some time, and the kernel keeps what it
// saw there first.
func planPath(g goal, o *observed, p progress, at hctl) ([]step, error) {
	scan := step{do: doScan, at: at}
	d := o.disk(at)
	if d == nil {
		wrong := p.done(step{do: doDelete, disk: disk{at: at}}) > 1
		if p.done(scan) < 2 && !wrong {
			return []step{scan}, nil
		}
		return nil, nil // this node does not show the LUN: a missing path
	}
	purge, identify, look := step{do: doDelete, disk: *d}, step{do: doIdentify, disk: *d}, step{do: doRescan, disk: *d}
	wrong := d.id != g.id || o.heldByOther(*d, g.id)
	switch {
	case wrong && p.done(identify) == 0:
		return []step{identify}, nil
	case g.heal && wrong && p.done(purge) == 1 && !o.usedBeside(*d, g.id):
		return []step{purge}, nil // it is to stay away
	case wrong && (p.done(purge) > 0 || d.id != g.id && o.usedBeside(*d, g.id)):
		// Asked again, the target says that another LUN has the number. One that is in use is not
		// touched, unless it is our own map that would write to it.
		return nil, fmt.Errorf("%w: LUN %d of %s is another device (%s %q), not %s", attach.ErrFailed, g.lun, g.target, d.id, strings.TrimSpace(d.product), g.id)
	case wrong, p.done(identify) > 0 && p.done(purge) == 0:
		// Even when it now says the right thing: udev and whatever has it open took it for the
		// other one.
		return []step{purge, scan}, nil
	case g.fresh && p.done(scan) == 0 && p.done(look) == 0:
		// The kernel answers from what it read when it found the device.
		return []step{look}, nil
	}
	return nil, nil
}

func unreachable(g goal, o *observed, p progress) error {
	err := fmt.Errorf("%w: no portal of %s can be reached", attach.ErrFailed, g.target)
	for _, portal := range g.portals {
		switch f, s := p.failed[portal], g.sessionsTo(portal, o); {
		case len(s) > 0 && !s[0].connected:
			err = fmt.Errorf("%w; %s: the session is %s", err, portal, s[0].state)
		case f != nil:
			err = fmt.Errorf("%w; %s: %w", err, portal, f)
		}
	}
	return err
}

// planMap: the map of this LUN, made of its paths and of nothing else, not suspended.
func planMap(g goal, o *observed, p progress) (steps []step, err error) {
	paths := g.paths(o)
	m := o.mapOf(g.id)
	if m == nil {
		if len(paths) == 0 {
			return nil, fmt.Errorf("%w: no portal of %s shows LUN %d: it is not mapped to %s there", attach.ErrFailed, g.target, g.lun, g.initiator)
		}
		await, nudge := step{do: doAwaitMap, id: g.id, paths: len(paths)}, step{do: doMakeMap, id: g.id}
		switch {
		case p.done(await) == 0:
			return []step{await}, nil
		case p.done(nudge) == 0:
			for _, d := range paths {
				steps = append(steps, step{do: doAddPath, disk: d})
			}
			return append(steps, nudge, await), nil
		}
		return nil, fmt.Errorf("%w: multipathd makes no map of %s although its paths %s are there", attach.ErrFailed, g.id.wwid(), names(paths))
	}
	if m.suspended {
		if s := (step{do: doResume, dm: *m}); p.done(s) < 2 && !g.heal { // somebody may be at work on it
			return []step{s}, nil
		}
		return nil, fmt.Errorf("%w: the map %s remains suspended", attach.ErrFailed, m.kernel)
	}
	for _, name := range m.slaves {
		d := o.named(name)
		if d != nil && d.id != g.id {
			if s := (step{do: doDelete, disk: *d}); p.done(s) == 0 {
				steps = append(steps, s)
				continue
			}
			return nil, fmt.Errorf("%w: %s in the map %s is another device (%s)", attach.ErrFailed, name, m.kernel, d.id)
		}
	}
	// multipathd refuses a path of another size than the map's: one that came back after the LUN
	// has grown waits for the resize.
	for _, d := range paths {
		if s := (step{do: doAddPath, disk: d}); d.size == m.size && !slices.Contains(m.slaves, d.name) && p.done(s) < 2 {
			steps = append(steps, s)
		}
	}
	if len(steps) == 0 && !slices.ContainsFunc(paths, func(d disk) bool { return slices.Contains(m.slaves, d.name) }) {
		return nil, fmt.Errorf("%w: the map %s has none of the paths of %s", attach.ErrFailed, m.kernel, g.id)
	}
	if s := (step{do: doRegroup, dm: *m}); len(steps) == 0 && g.regroup[g.id] && p.done(s) == 0 {
		steps = append(steps, s)
	}
	return steps, nil
}

// planSize: every path that can be asked shows the same size, and the map has it.
func planSize(g goal, o *observed, p progress) (steps []step, err error) {
	reachable := func(d disk) bool {
		return slices.ContainsFunc(g.up(o), func(s session) bool { return g.address(s) == d.at })
	}
	m, paths := o.mapOf(g.id), g.paths(o)
	if g.heal {
		// All paths have to show the new size: to take one out for it is up to the call that
		// expands.
		differ := slices.ContainsFunc(paths, func(d disk) bool { return d.size != m.size })
		g.resize = !g.away(o) && (g.resize || differ)
	}
	if !g.resize {
		return nil, nil
	}
	size := int64(-1)
	var stale []disk
	for _, d := range paths {
		again := step{do: doRescan, disk: d}
		switch {
		case !reachable(d):
			stale = append(stale, d)
		case p.done(again) == 0:
			steps = append(steps, again)
		case d.size == 0:
			// The kernel's word for a capacity that it could not read.
			return nil, fmt.Errorf("%w: the path %s (%s) of %s does not report its size", attach.ErrFailed, d.at, d.name, g.id)
		case size >= 0 && d.size != size:
			return nil, fmt.Errorf("%w: the paths of %s show different sizes, %d and %d bytes: not yet resized on both nodes", attach.ErrFailed, g.id, size, d.size)
		default:
			size = d.size
		}
	}
	if len(steps) > 0 {
		return steps, nil
	}
	if size < 0 {
		return nil, unreachable(g, o, p)
	}
	// A path that cannot be asked keeps the old size, and the kernel refuses a map that is larger
	// than one of its paths. It comes back when its session does.
	for _, d := range stale {
		if d.size != size {
			steps = append(steps, step{do: doDelete, disk: d})
		}
	}
	if m.size != size {
		s := step{do: doResizeMap, dm: *m}
		if g.heal && size < m.size {
			return nil, fmt.Errorf("%w: the LUN %s has %d bytes, less than its map %s with %d", attach.ErrFailed, g.id, size, m.kernel, m.size)
		}
		if p.done(s) == 2 {
			return nil, fmt.Errorf("%w: the map %s has %d bytes, its paths %d", attach.ErrFailed, m.kernel, m.size, size)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func names(disks []disk) string {
	var out []string
	for _, d := range disks {
		out = append(out, d.name)
	}
	return strings.Join(out, ", ")
}
