package kernel

import (
	"fmt"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
)

// planAbsent: from the top of the stack downwards, each step possible whether or not what is below
// still works.
func planAbsent(g goal, o *observed, p progress) (steps []step, err error) {
	if g.striped() {
		if steps, err = planStripesAbsent(g, o, p); err != nil || len(steps) > 0 {
			return steps, err
		}
	}
	if steps, err = planEach(g, o, p, planLUNAbsent); err != nil || len(steps) > 0 {
		return steps, err
	}
	// Sessions go with the last attachment that needs them. What something still holds that no
	// record knows of stays.
	for _, t := range g.byTarget() {
		steps = append(steps, strays(t, o, p)...)
	}
	return steps, nil
}

// planLUNAbsent removes one LUN from this worker.
func planLUNAbsent(g goal, o *observed, p progress) (steps []step, err error) {
	if m := o.mapOf(g.id); m != nil {
		if g.force {
			return planCut(o, m, p)
		}
		if u := m.users(); len(u) > 0 {
			return nil, fmt.Errorf("%w: /dev/%s is used by %s", attach.ErrBusy, m.kernel, strings.Join(u, ", "))
		}
		if m.suspended {
			if s := (step{do: doResume, dm: *m}); p.done(s) < 2 {
				return []step{s}, nil
			}
			return nil, fmt.Errorf("%w: the map %s remains suspended", attach.ErrFailed, m.kernel)
		}
		if s := (step{do: doFlush, dm: *m}); p.done(s) < 3 {
			return []step{s}, nil
		}
		return nil, fmt.Errorf("%w: the map %s is created again whenever it is removed", attach.ErrFailed, m.kernel)
	}
	if steps, err = deletions(append(o.disksOf(g.id), impostors(g, o)...), p); err != nil || len(steps) > 0 {
		return steps, err
	}
	if s := (step{do: doUnclaim, id: g.id}); o.claimed[g.id] && p.done(s) == 0 {
		return []step{s}, nil
	}
	return nil, nil
}

// planCut takes a map, or a striped one, away from the processes that use it. Its paths go first,
// and those of the maps below a striped one: what hangs turns into errors then, and nothing that is
// still in memory reaches a LUN that has moved on. A map that somebody keeps open stays; it gets a
// table that fails everything, and the call is refused: with the next publish of the same LUN,
// multipathd would put the new paths under the old user.
func planCut(o *observed, m *dmMap, p progress) (steps []step, err error) {
	once := func(s step) {
		if p.done(s) == 0 {
			steps = append(steps, s)
		}
	}
	below := []*dmMap{m}
	if m.striped() {
		below = o.mapsBelow(m)
	}
	for _, b := range below {
		once(step{do: doFail, dm: *b})
		paths, err := deletions(o.disksOf(b.id), p)
		if err != nil {
			return nil, err
		}
		steps = append(steps, paths...)
	}
	once(step{do: doWipe, dm: *m})
	if len(m.mounts) > 0 {
		once(step{do: doUnmount, dm: *m})
	}
	if len(steps) > 0 {
		return steps, nil
	}
	if s := (step{do: doRemove, dm: *m}); p.done(s) < 6 {
		return []step{s}, nil
	}
	what := strings.Join(m.users(), ", ")
	if what == "" {
		what = "a process that has it open"
	}
	return nil, fmt.Errorf("%w: /dev/%s of an earlier publish is cut off, but still used by %s: end that", attach.ErrBusy, m.kernel, what)
}

// deletions of disks that have not been deleted in vain before.
func deletions(disks []disk, p progress) (steps []step, err error) {
	for _, d := range disks {
		s := step{do: doDelete, disk: d}
		if p.done(s) == 3 {
			return nil, fmt.Errorf("%w: the path %s (%s) of %s cannot be removed", attach.ErrFailed, d.at, d.name, d.id)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// impostors are what was found at the LUN's address with another WWID, unless another attachment
// has that address by now.
func impostors(g goal, o *observed) (out []disk) {
	if g.taken() {
		return nil
	}
	for _, s := range o.sessions {
		if s.ours() && s.target == g.target {
			if d := o.disk(g.address(s)); d != nil && d.id != g.id {
				out = append(out, *d)
			}
		}
	}
	return out
}
