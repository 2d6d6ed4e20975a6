package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
)

// numbers gives each device-mapper device a number of its own.
func (f *fake) numbers() int {
	f.lastDM++
	return f.lastDM
}

// makeStripes is dmsetup create. Killed in the middle, it leaves a device without a table.
func (f *fake) makeStripes(volume, table string) {
	f.stripes = append(f.stripes, dmMap{kernel: fmt.Sprintf("dm-s%d", f.numbers()), name: stripedName(volume), uuid: stripedUUID(volume), suspended: f.torn})
	if !f.torn {
		f.load(&f.stripes[len(f.stripes)-1], table)
	}
	f.torn = false
}

// load gives a striped map a table.
func (f *fake) load(m *dmMap, table string) {
	fields := strings.Fields(table)
	var sectors int64
	if _, err := fmt.Sscan(fields[1], &sectors); err != nil || len(fields) < 7 {
		f.harm("table %q: %v", table, err)
	}
	f.release(m)
	m.table, m.size = table, sectors*512
	for at := 5; at < len(fields); at += 2 {
		i := slices.IndexFunc(f.maps, func(x dmMap) bool { return x.dev == fields[at] })
		if i < 0 {
			f.harm("%s is no map of a LUN: %q", fields[at], table)
			continue
		}
		if f.maps[i].size < m.size/int64((len(fields)-5)/2) {
			f.harm("the map %s is smaller than its part of %q", fields[at], table)
		}
		m.slaves = append(m.slaves, f.maps[i].kernel)
		f.maps[i].holders = append(slices.Clone(f.maps[i].holders), m.kernel)
	}
}

// release ends what a striped map holds.
func (f *fake) release(m *dmMap) {
	for i := range f.maps {
		f.maps[i].holders = slices.DeleteFunc(slices.Clone(f.maps[i].holders), func(h string) bool { return h == m.kernel })
	}
	m.slaves, m.table = nil, ""
}

func (f *fake) actStripes(s step) error {
	i := slices.IndexFunc(f.stripes, func(m dmMap) bool { return m.uuid == s.dm.uuid })
	if i < 0 {
		return nil
	}
	m := &f.stripes[i]
	switch s.do {
	case doResume:
		m.suspended = false
	case doGrowStripes:
		if f.torn { // killed between suspend and resume
			f.torn, m.suspended = false, true
			return nil
		}
		f.load(m, s.table)
	case doWipe:
		for _, name := range m.slaves {
			if b := f.maps[slices.IndexFunc(f.maps, func(x dmMap) bool { return x.kernel == name })]; len(f.disksOf(b.id)) > 0 {
				f.harm("%s is wiped while %s has paths", m.kernel, name)
			}
		}
		f.release(m)
	case doUnmount:
		m.mounts = nil
	case doDropStripes, doRemove:
		switch {
		case s.do == doDropStripes && len(m.users()) > 0:
			f.harm("%s is removed, used by %v", m.kernel, m.users())
		case f.open || len(m.mounts) > 0:
			return nil
		}
		f.release(m)
		f.stripes = slices.Delete(f.stripes, i, i+1)
	default:
		return fmt.Errorf("unknown step %q", s.do)
	}
	return nil
}

// wholeStripes says what of a striped volume is not as it should be.
func (f *fake) wholeStripes(a attach.Attachment) error {
	u := must(f.t, a)
	m := f.stripedOf(u.volume)
	if m == nil || m.suspended || len(f.stripes) != 1 || len(f.sessions) != 2*u.count()*len(u.endpoints()) {
		return fmt.Errorf("sessions %v, striped %v", f.sessions, f.stripes)
	}
	var devices []string
	for _, l := range u.each() {
		b := f.mapOf(l.id)
		if b == nil || len(b.slaves) != 2*u.count() || len(f.disksOf(l.id)) != 2*u.count() {
			return fmt.Errorf("disks %v, maps %v", f.disks, f.maps)
		}
		devices = append(devices, b.dev)
	}
	if want, err := u.layout().Table(m.size, devices); err != nil || m.table != want {
		return fmt.Errorf("table %q, not %q (%w)", m.table, want, err)
	}
	return nil
}
