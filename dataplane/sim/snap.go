package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Snapshots (R14): made on both nodes at one index of the log while the LUN's writes are held,
// durable at once, never written again. A joiner that lacks one, or has another one in its slot,
// gets it whole, and has on record that it is not complete until the resync has ended. The final
// comparison of the disks covers them.

// snapSlots is how many there can be. A node that has lost its place may hold another one in the
// same slot.
const snapSlots = 3

// snap is what a slot holds: a snapshot is prepared, then committed.
type snap struct {
	Born  uint64 `json:"born"` // index at which it was prepared, 0: there is none
	Ready bool   `json:"ready"`
}

// snapStep is what an entry does to a slot.
type snapStep int

const (
	snapPrepare snapStep = iota + 1
	snapCommit
	snapAbort
)

func (w *world) snapID(slot int) pair.LUNID { return pair.LUNID{byte(w.shape.luns + slot + 1)} }

// objectIDs are LUNs and snapshots.
func (w *world) objectIDs() []pair.LUNID {
	ids := append([]pair.LUNID(nil), w.luns...)
	for slot := range snapSlots {
		ids = append(ids, w.snapID(slot))
	}
	return ids
}

func (h *host) objects() (objs []pair.CopyObject) {
	size := int64(h.w.shape.blocks) * blockSize
	for _, l := range h.w.luns {
		objs = append(objs, pair.CopyObject{ID: l, Size: size, Born: 1})
	}
	for slot, s := range h.disk.meta.Snaps {
		if s.Born > 0 {
			objs = append(objs, pair.CopyObject{ID: h.w.snapID(slot), Size: size, Born: s.Born})
		}
	}
	return objs
}

// exists tells whether there is such an object.
func (d *disk) exists(id pair.LUNID) bool {
	slot := int(id[0]) - 1 - len(d.meta.Units)
	return slot < 0 || d.meta.Snaps[slot].Born > 0
}

// prepared tells whether an object is a snapshot that no entry has committed: its content is not
// promised.
func (d *disk) prepared(object int) bool {
	slot := object - len(d.meta.Units)
	return slot >= 0 && !d.meta.Snaps[slot].Ready
}

// applySnap is an entry of a snapshot. A joiner takes it of a LUN that is being copied to.
func (h *host) applySnap(e *entry, index uint64, joining bool) {
	slot := e.Snap - 1
	s := &h.disk.meta.Snaps[slot]
	switch {
	case e.Step == snapPrepare && s.Born == 0:
		h.disk.take(e.LUN, h.w.shape.luns+slot)
		s.Born, h.disk.copying[slot] = index, joining
		h.w.trace("node %v prepares snapshot %d of LUN %d", h.id, e.Snap, e.LUN+1)
	case e.Step == snapCommit && s.Born > 0:
		s.Ready = true
	case e.Step == snapAbort && s.Born > 0 && !s.Ready:
		h.disk.reset(h.w.shape.luns + slot)
		*s, h.disk.copying[slot] = snap{}, false
	}
}

// take copies a LUN as reads see it, durably.
func (d *disk) take(lun, slot int) {
	for b := range d.luns[lun] {
		d.luns[slot][b] = page{}
		d.luns[slot][b].put(d.luns[lun][b].cache, true)
		if d.pages > 0 { // without checksums it could not be detected that it differs from the LUN
			d.luns[slot][b].flip = d.luns[lun][b].flip
		}
	}
	d.clone(lun, slot)
}

// replaceMeta is an installation: what is not the source's object in a slot goes, and is named as
// incomplete. So does what the last entry here made: the source may have done that entry at another
// time, or another one in its place.
func (h *host) replaceMeta(m metaState) {
	for slot, s := range m.Snaps {
		if own := h.disk.meta.Snaps[slot].Born; own == s.Born && own != h.disk.meta.Index {
			continue
		}
		h.disk.reset(h.w.shape.luns + slot)
		h.disk.copying[slot] = s.Born > 0
	}
	h.disk.meta = m
	h.disk.makeFiles()
}

// incomplete are the objects that this node needs whole.
func (h *host) incomplete() (ids []pair.LUNID) {
	for lun, recreated := range h.disk.recreated {
		if recreated {
			ids = append(ids, h.w.luns[lun])
		}
	}
	for slot, copying := range h.disk.copying {
		if copying {
			ids = append(ids, h.w.snapID(slot))
		}
	}
	return ids
}

// snapshotOf takes a snapshot of a LUN in two steps, as the runtime does it: what an earlier
// proposer has left is undone first, what cannot be prepared is undone, and one whose proposer dies
// stays as it is.
func (h *host) snapshotOf(lun, slot int) {
	w := h.w
	if h.disk.misfit[lun] {
		return // refused
	}
	h.holding(lun, func(release func()) {
		step := func(s snapStep, next func(scsi.Result)) {
			h.moving++
			h.propose(entry{LUN: lun, Snap: slot + 1, Step: s}, func(res scsi.Result) {
				h.moving--
				w.trace("snapshot %d of LUN %d, step %d: %v", slot+1, lun+1, s, resultName(res))
				next(res)
			})
		}
		prepare := func() {
			step(snapPrepare, func(res scsi.Result) {
				switch res {
				case scsi.OK:
					step(snapCommit, func(res scsi.Result) {
						if res == scsi.OK {
							w.mark(markSnapshot)
						}
						release()
					})
				case scsi.Unavailable:
					release()
				default:
					step(snapAbort, func(scsi.Result) { release() })
				}
			})
		}
		switch s := h.disk.meta.Snaps[slot]; {
		case s.Ready:
			release()
		case s.Born > 0:
			w.mark(markSnapUndone)
			step(snapAbort, func(res scsi.Result) {
				if res != scsi.OK {
					release()
					return
				}
				prepare()
			})
		default:
			prepare()
		}
	})
}

// planSnapshots asks the LUN's owner, as hosts of the interface do.
func (w *world) planSnapshots() {
	for range w.rnd.IntN(6) {
		slot := w.rnd.IntN(snapSlots)
		lun := slot % w.shape.luns
		w.after(w.rnd.Int64N(w.shape.length), func() {
			for _, h := range w.nodes {
				if h.m != nil {
					if o, _ := h.m.Owner(w.luns[lun]); o == h.id {
						h.snapshotOf(lun, slot)
						return
					}
				}
			}
		})
	}
}
