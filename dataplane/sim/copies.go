package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// What a node copies to a snapshot after its instant. A block is copied before anything changes it
// at the LUN, or reads it in the snapshot, and the rest in the background. All of this is in the
// page cache until the last block is there: then the object is flushed with its checksums, and only
// then the copy is sealed. What is known of it is in the memory of the process, so an object that a
// process has not seen sealed when it ends is void.

// lazyCopy is what a process knows of an object that it has begun to copy.
type lazyCopy struct {
	lun, object int
	born        uint64
	began       int64
	marked      bool   // the log has marked it, and the rest is copied
	done        []bool // by group: what one checksum is of
	sealed      bool
	failed      bool
	room        func() bool // whether a block can be copied
}

// held is what a node has of a marked object.
type held uint8

const (
	heldUnknown held = iota // it does not know such an object, or it is not marked there
	heldVoid                // nothing that counts
	heldPart                // blocks are missing
	heldFailed              // and will not come
	heldSealed              // everything, from the instant on
	heldWhole               // everything that the source of a resync had
)

func (d *disk) groupSize() int { return max(d.pages, 1) }

// attach begins the copy of an object: from now on a block is copied before it changes.
func (h *host) attach(slot int) {
	d, s := h.disk, h.disk.meta.Snaps[slot]
	n := (h.w.shape.blocks + d.groupSize() - 1) / d.groupSize()
	c := &lazyCopy{lun: s.LUN, object: h.w.shape.luns + slot, born: s.Born, began: h.w.now, done: make([]bool, n), room: h.copyRoom}
	d.copies = append(d.copies, c)
}

// copyRoom tells whether a block can be copied: there is space, and the disk can be read.
func (h *host) copyRoom() bool {
	return h.space() == scsi.OK && (h.errors&ioRead == 0 || h.w.chance(0.5))
}

// detach ends the copy to a slot.
func (d *disk) detach(slot int) {
	for i, c := range d.copies {
		if c.object == slot+len(d.meta.Units) {
			d.copies = append(d.copies[:i:i], d.copies[i+1:]...)
			return
		}
	}
}

// copyOf finds the copy of an object.
func (d *disk) copyOf(object int, born uint64) *lazyCopy {
	for _, c := range d.copies {
		if c.object == object && c.born == born {
			return c
		}
	}
	return nil
}

// beforeWrite copies what is about to change, at the LUN or in the snapshot.
func (d *disk) beforeWrite(l pair.LUNID, off, n int64) {
	for _, c := range d.copies {
		if object := int(l[0]) - 1; c.lun == object || c.object == object {
			d.takeRange(c, off, n)
		}
	}
}

// beforeRead copies what is about to be read in a snapshot.
func (d *disk) beforeRead(l pair.LUNID, off, n int64) {
	for _, c := range d.copies {
		if c.object == int(l[0])-1 {
			d.takeRange(c, off, n)
		}
	}
}

// takeRange copies complete groups, for a checksum is of all of its group.
func (d *disk) takeRange(c *lazyCopy, off, n int64) {
	size := int64(d.groupSize()) * blockSize
	for g := off / size; g*size < off+n; g++ {
		d.take(c, int(g))
	}
}

// take copies a group as reads see it, with its checksum, unless that has been done. Where there is
// no room the copy fails, and the write that waits for it does not.
func (d *disk) take(c *lazyCopy, g int) {
	if c.done[g] || c.failed {
		return
	}
	if !c.room() {
		c.failed = true
		return
	}
	from, to := d.luns[c.lun], d.luns[c.object]
	for b := g * d.groupSize(); b < min((g+1)*d.groupSize(), len(from)); b++ {
		to[b].put(from[b].cache, false)
		if d.pages > 0 { // without checksums it could not be detected that it differs from the LUN
			to[b].flip = from[b].flip
		}
	}
	if d.pages > 0 {
		d.sums[c.object][g].mem = d.sumFor(c.lun, g)
	}
	c.done[g] = true
}

// sumFor is the checksum of a group as the block's lock shows it: the one of a write that has ended
// a moment ago is there, and one in doubt is not known.
func (d *disk) sumFor(object, g int) stored {
	if x, has := d.coming[[2]int{object, g}]; has {
		return x
	}
	if c := &d.sums[object][g]; !c.doubt {
		return c.mem
	}
	return stored{kind: sumUnknown}
}

// Bounds of the pause between two steps of the copy of a snapshot.
const (
	copyPauseMin = 200 * us
	copyPauseMax = 60 * ms
)

// copyOn copies a few blocks after a while, and seals the object when there are none left.
func (h *host) copyOn(slot int, c *lazyCopy) {
	w, life := h.w, h.life
	ended := func() bool { return c.failed || c.sealed || h.disk.copyOf(c.object, c.born) != c }
	w.after(w.between(copyPauseMin, copyPauseMax), func() {
		h.when(life, func() {
			if ended() {
				return
			}
			todo := c.todo(1 + w.rnd.IntN(2))
			if len(todo) == 0 {
				h.seal(slot, c)
				return
			}
			h.io(ioRead, 50*us, 2*ms, func(func() bool) {
				for _, g := range todo {
					if h.life == life && !ended() {
						h.disk.take(c, g)
					}
				}
			}, func(res scsi.Result) {
				c.failed = c.failed || res != scsi.OK
				h.copyOn(slot, c)
			})
		})
	})
}

// todo are the first groups that have not been copied.
func (c *lazyCopy) todo(n int) (groups []int) {
	for g, done := range c.done {
		if !done && len(groups) < n {
			groups = append(groups, g)
		}
	}
	return groups
}

// seal makes an object durable of which every block is there.
func (h *host) seal(slot int, c *lazyCopy) {
	h.flushing([]pair.LUNID{h.w.snapID(slot, c.born)}, true, func(res scsi.Result) {
		c.sealed, c.failed = res == scsi.OK, res != scsi.OK
		h.w.trace("node %v: the copy of snapshot %d, born %d, is sealed (%v)", h.id, slot+1, c.born, c.sealed)
	})
}

// holds tells what this process has of a marked object. One that an earlier life has not sealed
// counts for nothing.
func (h *host) holds(slot int, born uint64) held {
	if s := h.disk.meta.Snaps[slot]; s.Stage != stageMarked || s.Born != born {
		return heldUnknown
	}
	c := h.disk.copyOf(h.w.shape.luns+slot, born)
	switch {
	case c == nil && h.whole[slot] == born:
		return heldWhole
	case c == nil:
		return heldVoid
	case c.failed:
		return heldFailed
	case c.sealed:
		return heldSealed
	}
	return heldPart
}
