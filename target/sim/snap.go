package sim

import (
	"github.com/gemel-storage/gemel/target/pair"
	"github.com/gemel-storage/gemel/target/scsi"
)

// Snapshots (R14): made on both nodes at one index of the log while the LUN's writes are held, durable at once, never
// written again. A joiner that lacks one, or has another one in its slot, gets it whole, and has on record that it is not
// complete until the resync has ended. The final comparison of the disks covers them.

// snapSlots is how many there can be. A node that has lost its place may hold another one in the same slot.
const snapSlots = 3

func (w *world) slots() int {
	if w.cfg.Snapshots {
		return snapSlots
	}
	return 0
}

func (w *world) snapID(slot int) pair.LUNID { return pair.LUNID{byte(w.shape.luns + slot + 1)} }

// objectIDs are LUNs and snapshots.
func (w *world) objectIDs() []pair.LUNID {
	ids := append([]pair.LUNID(nil), w.luns...)
	for slot := range w.slots() {
		ids = append(ids, w.snapID(slot))
	}
	return ids
}

func (h *host) objects() (objs []pair.CopyObject) {
	size := int64(h.w.shape.blocks) * blockSize
	for _, l := range h.w.luns {
		objs = append(objs, pair.CopyObject{ID: l, Size: size, Born: 1})
	}
	for slot, born := range h.disk.meta.Snaps {
		if born > 0 {
			objs = append(objs, pair.CopyObject{ID: h.w.snapID(slot), Size: size, Born: born})
		}
	}
	return objs
}

// exists tells whether there is such an object.
func (d *disk) exists(id pair.LUNID) bool {
	slot := int(id[0]) - 1 - len(d.meta.Units)
	return slot < 0 || d.meta.Snaps[slot] > 0
}

// take copies a LUN as reads see it, durably.
func (d *disk) take(lun, slot int) {
	for b := range d.luns[lun] {
		d.luns[slot][b] = page{}
		d.luns[slot][b].put(d.luns[lun][b].cache, true)
	}
}

// replaceMeta is an installation: what is not the source's object in a slot goes, and is named as incomplete.
func (h *host) replaceMeta(m metaState) {
	for slot, born := range m.Snaps {
		if h.disk.meta.Snaps[slot] == born {
			continue
		}
		clear(h.disk.luns[h.w.shape.luns+slot])
		h.disk.copying[slot] = born > 0
	}
	h.disk.meta = m
}

// incomplete are the snapshots that this node needs whole.
func (h *host) incomplete() (ids []pair.LUNID) {
	for slot, copying := range h.disk.copying {
		if copying {
			ids = append(ids, h.w.snapID(slot))
		}
	}
	return ids
}

// snapshotOf takes a snapshot of a LUN, as the runtime does it.
func (h *host) snapshotOf(lun, slot int) {
	w, life := h.w, h.life
	h.when(life, func() {
		h.nextID++
		q := h.nextID
		h.quiets[q] = func(res scsi.Result) {
			if res != scsi.OK {
				return
			}
			if h.disk.meta.Snaps[slot] > 0 {
				h.m.Release(h.clock(), q)
				return
			}
			h.moving++
			h.propose(entry{LUN: lun, Snap: slot + 1}, func(res scsi.Result) {
				h.moving--
				w.trace("snapshot %d of LUN %d: %v", slot+1, lun+1, res)
				if res == scsi.OK {
					w.mark(markSnapshot)
				}
				h.m.Release(h.clock(), q)
			})
		}
		h.m.Quiesce(h.clock(), q, []pair.LUNID{w.luns[lun]}, 1500*ms)
	})
}

func (w *world) planSnapshots() {
	for range w.rnd.IntN(4) {
		lun, slot := w.rnd.IntN(w.shape.luns), w.rnd.IntN(snapSlots)
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
