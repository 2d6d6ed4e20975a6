package work

import (
	"maps"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/balance"
)

// Resource is what LUNs share at each node: its CPUs, or the disk under one backing volume.
type Resource struct {
	Volume string // empty: CPUs
	Use    [2]float64
	Wait   [2]float64       // of a disk: seconds that a read takes
	LUNs   map[string]Share // those that use it
}

// Place of a LUN: its owner, 0 or 1, and its backing volume. A LUN that is not known counts
// nowhere.
type Place func(lun string) (owner int, volume string, ok bool)

// Resources combines the reports of both nodes: CPUs first, then the disks that both nodes know, in
// order of their volumes.
func Resources(r [2]Report, place Place) []Resource {
	cpu := Resource{}
	cpu.Use, cpu.LUNs = Pair(r, func(id string) (int, bool) { n, _, ok := place(id); return n, ok })
	all := []Resource{cpu}
	for _, volume := range slices.Sorted(maps.Keys(r[0].Disks)) {
		if _, both := r[1].Disks[volume]; both {
			all = append(all, disk(r, volume, place))
		}
	}
	return all
}

// disk counts the reads of LUNs where their owners are now, as Pair does for CPUs.
func disk(r [2]Report, volume string, place Place) Resource {
	d := Resource{Volume: volume, LUNs: map[string]Share{}}
	for n := range r {
		u := r[n].Disks[volume]
		d.Use[n], d.Wait[n] = u.Busy, u.Wait
		for id, l := range r[n].LUNs {
			if _, v, ok := place(id); !ok || v != volume || max(l.DiskFast, l.DiskSlow) <= 0 {
				continue
			}
			s := d.LUNs[id]
			s.Fast += l.DiskFast
			s.Slow += l.DiskSlow
			d.LUNs[id] = s
			d.Use[n] -= l.DiskSlow
		}
		d.Use[n] = max(d.Use[n], 0)
	}
	for id, s := range d.LUNs {
		n, _, _ := place(id)
		d.Use[n] += s.Slow
	}
	return d
}

// When a disk is a scarce resource: from so much use on, and if a read takes so long. A disk that
// serves many requests at once, as NVMe does, is busy all the time and far from full, and its reads
// are short.
const (
	diskFrom = 0.4
	waitFrom = 500e-6
)

// Hysteresis between resources: another one has to be nearer to its capacity by margin, and the
// choice stands for a slow window at least.
const (
	margin = 0.1
	stands = balance.SlowWindow
)

// Choice is the resource that the work of a pair is measured in: the one whose busier node is
// nearest to its capacity. The zero value is that of CPUs.
type Choice struct {
	volume  string // empty: CPUs
	changed bool   // and when it last did
	at      int64
}

// Choose returns the index of the resource at the time now (ns), and whether it is another one than
// before. The first of all is CPUs.
func (c *Choice) Choose(now int64, all []Resource) (index int, changed bool) {
	held := slices.IndexFunc(all, func(r Resource) bool { return r.Volume == c.volume })
	if c.changed && held >= 0 && now-c.at < int64(stands) {
		return held, false
	}
	best := 0
	for i := range all {
		if all[i].scarce(i == held) > all[best].scarce(best == held) {
			best = i
		}
	}
	if best == held {
		return best, false
	}
	c.changed, c.volume, c.at = true, all[best].Volume, now
	return best, true
}

// saturated is the use of both nodes above which no move helps: package balance moves nothing then.
const saturated = 0.95

// scarce is how near the busier node is to its capacity; 0 of a resource that nothing is to be
// evened of. That which was chosen last keeps an advantage.
func (r *Resource) scarce(held bool) float64 {
	most, wait, bonus := max(r.Use[0], r.Use[1]), max(r.Wait[0], r.Wait[1]), 0.0
	if held {
		bonus = margin
		wait *= 2
	}
	if min(r.Use[0], r.Use[1]) > saturated+bonus/5 || r.Volume != "" && (most+bonus < diskFrom || wait < waitFrom) {
		return 0
	}
	return most + bonus
}

// crowdsFrom is what a LUN may take along of another resource, as a share of a node, without a
// look at it.
const crowdsFrom = 0.02

// Crowds reports whether a LUN would, at the other node, make another resource scarcer than the
// chosen one is now. Moves that do not, do not raise the use of the scarcest resource of the pair,
// so that choosing resources in turn cannot move LUNs to and fro.
func Crowds(all []Resource, chosen int, id string, to int) bool {
	limit := max(all[chosen].Use[0], all[chosen].Use[1])
	for i := range all {
		if s := all[i].LUNs[id]; i != chosen && s.Slow > crowdsFrom && all[i].Use[to]+s.Slow > limit {
			return true
		}
	}
	return false
}
