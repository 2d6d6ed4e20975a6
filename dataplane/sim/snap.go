package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Snapshots (R14): while the LUN's writes are held both nodes begin to copy what is about to change
// (begin.go), and an entry of the log marks the object afterwards; the blocks are copied by each
// node for itself (copies.go), and an entry of its own says that both nodes have all of them
// durably. From then on a snapshot is never written
// again. A joiner that lacks one, or that has not finished it, gets it whole, and has on record
// that it is not complete until the resync has ended. The final comparison of the disks covers
// them.

// snapSlots is how many there can be. A node that has lost its place may hold another one in the
// same slot.
const snapSlots = 3

// snapStage is how far a snapshot is.
type snapStage uint8

const (
	stageNone     snapStage = iota
	stagePrepared           // it has an empty object
	stageMarked             // its content is that of an instant before, and is being copied
	stageReady              // all of it is durable at every member
)

// snap is what a slot holds.
type snap struct {
	Born  uint64    `json:"born"` // index at which it was prepared, 0: there is none
	LUN   int       `json:"lun"`
	Stage snapStage `json:"stage"`
}

// snapStep is what an entry does to a slot.
type snapStep int

const (
	snapPrepare snapStep = iota + 1
	snapMark
	snapCommit
	snapAbort
	snapDelete
)

func (s snapStep) String() string {
	return [...]string{"", "prepare", "mark", "commit", "abort", "delete"}[s]
}

// snapID is the id of an object in a slot. One that is made after another one was removed has
// another id.
func (w *world) snapID(slot int, born uint64) (id pair.LUNID) {
	id[0] = byte(w.shape.luns + slot + 1)
	binary.BigEndian.PutUint64(id[8:], born)
	return id
}

// objectIDs are LUNs and snapshots.
func (h *host) objectIDs() []pair.LUNID {
	ids := append([]pair.LUNID(nil), h.w.luns...)
	for slot, s := range h.disk.meta.Snaps {
		ids = append(ids, h.w.snapID(slot, s.Born))
	}
	return ids
}

// objects are what both nodes must hold alike. What is prepared only is empty, and is not among
// them: as an object of the plan of a resync it would be taken as compared when it is marked later,
// and nothing would copy what it is filled with.
func (h *host) objects() (objs []pair.CopyObject) {
	size := int64(h.w.shape.blocks) * blockSize
	for _, l := range h.w.luns {
		objs = append(objs, pair.CopyObject{ID: l, Size: size, Born: 1})
	}
	for slot, s := range h.disk.meta.Snaps {
		if s.Stage > stagePrepared {
			objs = append(objs, pair.CopyObject{ID: h.w.snapID(slot, s.Born), Size: size, Born: s.Born})
		}
	}
	return objs
}

// exists tells whether there is such an object.
func (d *disk) exists(id pair.LUNID) bool {
	slot := int(id[0]) - 1 - len(d.meta.Units)
	return slot < 0 || d.meta.Snaps[slot].Born > 0 && d.meta.Snaps[slot].Born == binary.BigEndian.Uint64(id[8:])
}

// prepared tells whether an object is a snapshot that no entry has committed: its content is not
// promised.
func (d *disk) prepared(object int) bool {
	slot := object - len(d.meta.Units)
	return slot >= 0 && d.meta.Snaps[slot].Stage != stageReady
}

// promised tells whether the content of an object here is what it should be.
func (d *disk) promised(object int) bool {
	slot := object - len(d.meta.Units)
	return slot < 0 || !d.prepared(object) && !d.copying[slot]
}

// marking tells whether an object of a LUN has been marked and is not ready. There is one at a
// time.
func (d *disk) marking(lun int) bool {
	for _, s := range d.meta.Snaps {
		if s.Stage == stageMarked && s.LUN == lun {
			return true
		}
	}
	return false
}

// applySnap is an entry of a snapshot. All steps but the first name the object that they mean: a
// late one must not hit a younger object of the slot. What a joiner makes of an instant that it has
// not been copied to is nothing: it has on record that it needs the object whole.
func (h *host) applySnap(e *entry, index uint64, joining bool) scsi.Result {
	slot, d := e.Snap-1, h.disk
	s := &d.meta.Snaps[slot]
	born := s.Born
	switch {
	case e.Step == snapPrepare && e.Attempt != 0 && e.Attempt != d.meta.Group.Attempt:
		return scsi.Busy
	case e.Step == snapPrepare && s.Born == 0:
		d.reset(h.w.shape.luns + slot)
		*s = snap{Born: index, LUN: e.LUN, Stage: stagePrepared}
	case e.Step == snapMark && s.Stage == stagePrepared && s.Born == e.Born && !d.marking(s.LUN):
		s.Stage = stageMarked
		h.marks(slot, joining)
	case e.Step == snapCommit && s.Stage == stageMarked && s.Born == e.Born:
		s.Stage = stageReady
		h.judgeSnap(slot)
		h.judgeCut(s.Born)
	case e.Step == snapAbort && s.Stage != stageNone && s.Stage != stageReady && s.Born == e.Born:
		h.removes(slot)
	case e.Step == snapDelete && s.Stage == stageReady && s.Born == e.Born:
		h.judgeSnap(slot)
		h.removes(slot)
	case e.Step == snapAbort, e.Step == snapDelete:
		return scsi.OK // it is gone already
	default:
		return scsi.Busy
	}
	h.w.trace("node %v: %v of snapshot %d of LUN %d, born %d (joining %v)", h.id, e.Step, e.Snap, e.LUN+1, s.Born, joining)
	if e.Step != snapPrepare && born != e.Born {
		h.w.fail("R14: the %v of object %d of slot %d, at node %v, hits object %d", e.Step, e.Born, e.Snap, h.id, born)
	}
	return scsi.OK
}

// marks has a process that has begun with an object copy the rest of it. One that has not must not
// begin now, for the LUN has changed since, and has nothing of it. A joiner, which gets the object
// from its source, has on record that it is not complete.
func (h *host) marks(slot int, joining bool) {
	switch {
	case joining:
		h.needs(slot)
	case !h.disk.orphan:
		h.disk.copying[slot] = false
		if c := h.disk.copyOf(h.w.shape.luns+slot, h.disk.meta.Snaps[slot].Born); c != nil {
			c.marked = true
			h.copyOn(slot, c)
		}
	}
}

func (h *host) removes(slot int) {
	d := h.disk
	d.detach(slot)
	d.reset(h.w.shape.luns + slot)
	d.meta.Snaps[slot], d.copying[slot] = snap{}, false
}

// replaceMeta is an installation. The copies of this life end: they were of instants of a log that
// is not this node's any more. An object of the source counts as complete here only if it was ready
// here, too; else it is named as incomplete, and what is not the source's object goes. So what the
// last entry here made is never taken for the source's, which may have done that entry at another
// time, or another one in its place.
func (h *host) replaceMeta(m metaState) {
	h.disk.copies, h.whole = nil, [snapSlots]uint64{}
	for slot, s := range m.Snaps {
		own := h.disk.meta.Snaps[slot]
		if own.Born == s.Born && own.Stage == stageReady {
			continue
		}
		if own.Born != s.Born {
			h.disk.reset(h.w.shape.luns + slot)
		}
		h.disk.copying[slot] = s.Born > 0
	}
	h.disk.meta = m
	h.disk.makeFiles()
	for slot, copying := range h.disk.copying {
		if copying {
			h.needs(slot)
		}
	}
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
			ids = append(ids, h.w.snapID(slot, h.disk.meta.Snaps[slot].Born))
		}
	}
	return ids
}

// unfinished names a snapshot that is marked and neither ready nor gone.
func (w *world) unfinished() string {
	for _, h := range w.nodes {
		for slot, s := range h.disk.meta.Snaps {
			if s.Stage == stageMarked {
				return fmt.Sprintf("snapshot %d of LUN %d at node %v is marked, and neither ready nor gone", slot+1, s.LUN+1, h.id)
			}
		}
	}
	return ""
}
