package sim

import (
	"fmt"
	"slices"
)

// What a snapshot must hold: what the LUN held at one instant. When an entry commits it, its
// content is noted, and does not change any more at either node. The content is judged against what
// hosts saw: an instant must exist at which the LUN could have held it.

// instant bounds when a snapshot was taken: when the first node began with it, and the last one.
type instant struct{ from, to int64 }

// noteInstant notes that a node begins.
func (h *host) noteInstant(slot int) {
	w, born := h.w, h.disk.meta.Snaps[slot].Born
	if w.instants == nil {
		w.instants, w.contents = map[uint64]instant{}, map[uint64][]uint64{}
	}
	at, has := w.instants[born]
	if !has {
		at.from = w.now
	}
	at.to = w.now
	w.instants[born] = at
	if w.atMark != nil {
		w.atMark()
		w.atMark = nil
	}
}

// judgeable tells whether an object at a node can be judged: it is promised there, and no loss that
// is not the snapshot's own is in it.
func (h *host) judgeable(slot int) bool {
	w, d := h.w, h.disk
	object := w.shape.luns + slot
	return d.meta.Snaps[slot].Stage == stageReady && d.promised(object) && !d.misfit[object] && !d.suspect() && !h.broken &&
		!w.shape.lone && w.parted == 0 && !w.excusedMark() && !slices.ContainsFunc(w.history.losses, func(x loss) bool { return x.forced })
}

// judgeSnap compares a snapshot with what it was when the first node committed it, and with what
// hosts saw.
func (h *host) judgeSnap(slot int) {
	w, s := h.w, h.disk.meta.Snaps[slot]
	if !h.judgeable(slot) {
		return
	}
	var values []uint64
	for _, p := range h.disk.luns[w.shape.luns+slot] {
		values = append(values, p.cache)
	}
	switch was, has := w.contents[s.Born]; {
	case !has && w.contents != nil:
		w.contents[s.Born] = values
	case has && !slices.Equal(was, values):
		w.fail("R14: snapshot %d of LUN %d at node %v holds %d, and was committed with %d", slot+1, s.LUN+1, h.id, values, was)
		return
	}
	if w.history.lostAny(s.LUN) {
		return // acknowledged writes may be gone from the LUN
	}
	at := w.instants[s.Born]
	w.mark(markInstant)
	if what := w.instant(s.LUN, values, at); what != "" {
		w.fail("R14: snapshot %d of LUN %d at node %v, marked between %.3f and %.3fms: %s", slot+1, s.LUN+1, h.id, float64(at.from)/1e6, float64(at.to)/1e6, what)
	}
}

// shown is what a snapshot of a LUN holds, by block.
type shown struct {
	lun    int
	values []uint64
}

// instant says why no instant within the bounds exists at which a LUN could have held some values.
func (w *world) instant(lun int, values []uint64, at instant) string {
	return w.instantOf([]shown{{lun, values}}, at)
}

// instantOf says why no instant within the bounds exists at which LUNs could have held some values:
// one of them was written after it, or one is older than a write that was acknowledged before it.
// What is known of the instant is that it is not before the start of any write that it shows.
func (w *world) instantOf(all []shown, at instant) string {
	begun := at.from
	for _, x := range all {
		for b, v := range x.values {
			from, _, has := w.span(x.lun, b, v)
			switch {
			case v == 0: // as at the beginning, or unmapped
			case !has:
				return fmt.Sprintf("block %d of LUN %d holds %d, which no host has written there", b, x.lun+1, v)
			case from > at.to:
				return fmt.Sprintf("block %d of LUN %d holds %d, whose write began at %.3fms", b, x.lun+1, v, float64(from)/1e6)
			default:
				begun = max(begun, from)
			}
		}
	}
	for _, x := range all {
		for b, v := range x.values {
			_, to, _ := w.span(x.lun, b, v)
			for _, r := range w.history.blocks[x.lun][b] {
				if r.changes() && !r.optional && r.ret < begun && r.call > to {
					return fmt.Sprintf("block %d of LUN %d holds %d, and %d was acknowledged there at %.3fms, before a write that is in it or the mark, at %.3fms",
						b, x.lun+1, v, r.value, float64(r.ret)/1e6, float64(begun)/1e6)
				}
			}
		}
	}
	return ""
}

// span is when a value may have been written to a block: from the start of the first attempt to the
// end of the operation of the last.
func (w *world) span(lun, block int, v uint64) (from, to int64, has bool) {
	from, to = forever, -1
	for _, r := range w.history.blocks[lun][block] {
		if r.changes() && r.value == v {
			from, to, has = min(from, r.call), max(to, r.ret), true
		}
	}
	for _, c := range w.clients {
		if l := c.op; l != nil && l.kind.writes() && l.lun == lun && l.block <= block && block < l.block+l.n && l.value == v && len(l.tries) > 0 {
			from, to, has = min(from, l.tries[0].start), forever, true
		}
	}
	return from, to, has
}
