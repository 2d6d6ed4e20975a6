package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
)

// The layer of a striped volume: a device-mapper device with the target "striped" over the maps of
// its LUNs (docs/decisions/0074). Nothing of the layout is on the LUNs, so it is always made from
// the attachment, and what is there is compared with that: which device has each leg, in which
// order, and the size of a stripe.

// table is what the striped map of a size has to be; 0: as large as the LUNs allow.
func (g goal) table(o *observed, size int64) (string, error) {
	var devices []string
	least := int64(-1)
	for i, l := range g.legs {
		m := o.mapOf(l.id)
		if m == nil || m.suspended {
			return "", fmt.Errorf("%w: leg %d of %s has no map", attach.ErrFailed, i, g.volume)
		}
		devices = append(devices, m.dev)
		if least < 0 || m.size < least {
			least = m.size
		}
	}
	most := g.layout().Volume(least)
	switch {
	case size == 0:
		size = most
	case size > most:
		return "", fmt.Errorf("%w: the striped map of %s has %d bytes, and its LUNs have %d in all: one of them is another LUN, or was made smaller", attach.ErrFailed, g.volume, size, most)
	}
	t, err := g.layout().Table(size, devices)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", attach.ErrFailed, g.volume, err)
	}
	return t, nil
}

// unclaimed checks that no other program uses a LUN of the volume by itself. LVM, for example, may
// have found its label in the first stripe of a leg, where an application of the volume wrote it.
func (g goal) unclaimed(o *observed) error {
	for i, l := range g.legs {
		if m := o.mapOf(l.id); m != nil && len(m.users()) > 0 {
			return fmt.Errorf("%w: leg %d of %s, /dev/%s, is used by itself by %s: end that (for LVM set filter or use_devicesfile)", attach.ErrBusy, i, g.volume, m.kernel, strings.Join(m.users(), ", "))
		}
	}
	return nil
}

// planStripes: the striped map of the volume, over the maps of its LUNs, in their order, not
// suspended. The maps are there, whole, when it is asked.
func planStripes(g goal, o *observed, p progress) ([]step, error) {
	m := o.stripedOf(g.volume)
	if m == nil {
		t, err := g.table(o, 0)
		if err == nil {
			err = g.unclaimed(o)
		}
		if err != nil {
			return nil, err
		}
		if s := (step{do: doMakeStripes, volume: g.volume, table: t}); p.done(s) < 2 {
			return []step{s}, nil
		}
		return nil, fmt.Errorf("%w: the striped map of %s is not there, although dmsetup made it", attach.ErrFailed, g.volume)
	}
	// One that was never given a table, or is made of something else: of an earlier publish, or of
	// a process that was killed. Nothing that uses it may go on with these LUNs.
	want, err := g.table(o, m.size)
	if err != nil && m.table != "" {
		return nil, err
	}
	if m.table == "" || m.table != want {
		s := step{do: doDropStripes, dm: *m}
		if u := m.users(); len(u) > 0 || g.heal || p.done(s) == 2 {
			return nil, fmt.Errorf("%w: the striped map %s has the table %q, and %s needs %q; it is used by: %s", attach.ErrFailed, m.kernel, m.table, g.volume, want, strings.Join(u, ", "))
		}
		return []step{s}, nil
	}
	if m.suspended {
		if s := (step{do: doResume, dm: *m}); p.done(s) < 2 && !g.heal {
			return []step{s}, nil
		}
		return nil, fmt.Errorf("%w: the striped map %s remains suspended", attach.ErrFailed, m.kernel)
	}
	if !g.resize && !g.heal {
		return nil, nil
	}
	larger, err := g.table(o, 0)
	if err != nil || larger == want {
		return nil, err
	}
	if s := (step{do: doGrowStripes, dm: *m, table: larger}); p.done(s) < 2 {
		return []step{s}, nil
	}
	return nil, fmt.Errorf("%w: the striped map %s has %d bytes, and its LUNs have grown", attach.ErrFailed, m.kernel, m.size)
}

// planStripesAbsent removes the striped map, before anything of its LUNs.
func planStripesAbsent(g goal, o *observed, p progress) ([]step, error) {
	m := o.stripedOf(g.volume)
	if m == nil {
		return nil, nil
	}
	if g.force {
		return planCut(o, m, p)
	}
	if u := m.users(); len(u) > 0 {
		return nil, fmt.Errorf("%w: /dev/%s is used by %s", attach.ErrBusy, m.kernel, strings.Join(u, ", "))
	}
	if s := (step{do: doResume, dm: *m}); m.suspended && m.table != "" && p.done(s) < 2 {
		return []step{s}, nil
	}
	if s := (step{do: doDropStripes, dm: *m}); p.done(s) < 3 {
		return []step{s}, nil
	}
	return nil, fmt.Errorf("%w: the striped map %s cannot be removed: a process has it open", attach.ErrBusy, m.kernel)
}

// mapsBelow are the multipath maps that a striped map is made of.
func (o *observed) mapsBelow(m *dmMap) (out []*dmMap) {
	for i := range o.maps {
		if slices.Contains(m.slaves, o.maps[i].kernel) {
			out = append(out, &o.maps[i])
		}
	}
	return out
}

// stripedOf is the striped map of a volume.
func (o *observed) stripedOf(volume string) *dmMap {
	uuid := stripedUUID(volume)
	for i := range o.stripes {
		if o.stripes[i].uuid == uuid {
			return &o.stripes[i]
		}
	}
	return nil
}

// deviceOf is the map that an attachment is used through.
func (o *observed) deviceOf(u unit) *dmMap {
	if u.striped() {
		return o.stripedOf(u.volume)
	}
	return o.mapOf(u.id)
}

// mapsOf are all maps of an attachment that are there, the upper one first.
func (o *observed) mapsOf(u unit) (out []*dmMap) {
	if u.striped() {
		if m := o.stripedOf(u.volume); m != nil {
			out = append(out, m)
		}
	}
	for _, l := range u.each() {
		if m := o.mapOf(l.id); m != nil {
			out = append(out, m)
		}
	}
	return out
}
