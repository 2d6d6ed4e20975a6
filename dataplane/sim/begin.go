package sim

// The instant of a snapshot (R14): the owner of the LUN, which holds the changes to it, has the
// other node begin, and begins itself. Nothing of that is in the log. If an answer does not come,
// the snapshot is given up, and what has begun ends with its object, or when something else of the
// LUN begins later.

const (
	beginLost = s         // an answer that has not come by then does not come
	beginKept = 2000 * ms // what has begun so long ago, and is not marked, is in vain
)

// beginsBoth has both nodes begin, or a lone one.
func (h *host) beginsBoth(slot int, born uint64, done func(ok bool)) {
	if v := h.m.View(h.clock()); !v.Record.Both() {
		done(h.begins(slot, born))
		return
	}
	h.asksOnce(func(peer *host) any { return peer.begins(slot, born) }, func(ok bool) { done(ok && h.begins(slot, born)) })
}

// begins is the instant at one node.
func (h *host) begins(slot int, born uint64) bool {
	d, s := h.disk, h.disk.meta.Snaps[slot]
	if d.orphan || s.Stage != stagePrepared || s.Born != born {
		return false
	}
	for _, c := range d.copies {
		if c.lun != s.LUN {
			continue
		}
		if c.marked || h.w.now-c.began < beginKept {
			return false
		}
		d.detach(c.object - h.w.shape.luns)
		break
	}
	h.noteInstant(slot)
	h.attach(slot)
	return true
}
