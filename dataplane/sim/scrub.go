package sim

import (
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Scrubs run under load now and then, and once more at the end. In some histories a block of the
// partner's disk changes by itself right before: no host is served from there, so no host may ever
// see it, and the scrub has to find and repair it. If anything happens to the pair meanwhile the
// disk finds its way back (unflip): a copy that has rotted and becomes the source without having
// been scrubbed is not promised to be found.

func (w *world) planScrubs() {
	for range w.shape.scrubs {
		w.after(w.even(300*ms, w.shape.length), func() {
			h := w.any()
			if w.shape.flips {
				w.flip(h)
			}
			h.scrub()
		})
	}
}

// scrubAll is the last look at both copies.
func (w *world) scrubAll() {
	for _, h := range w.nodes {
		h.scrub()
	}
}

// scrubbed tells that no scrub is under way.
func (w *world) scrubbed() bool {
	for _, h := range w.nodes {
		if h.scrubbing != nil {
			return false
		}
	}
	return true
}

// scrub compares the LUNs that a node owns, and snapshots at the first member; and repairs.
func (h *host) scrub() {
	w := h.w
	h.when(h.life, func() {
		var objs []pair.CopyObject
		var luns []scrubbedObject
		v := h.m.View(h.clock())
		if v.Phase != pair.Paired {
			return
		}
		for _, o := range h.objects() {
			i := int(o.ID[0]) - 1
			if h.disk.prepared(i) {
				continue
			}
			if owner, ok := h.m.Owner(o.ID); ok && owner == h.id || !ok && i >= w.shape.luns && v.Record.Chair() == h.id {
				objs, luns = append(objs, o), append(luns, scrubbedObject{i, h.bornAt(i)})
			}
		}
		if len(objs) > 0 && h.m.Scrub(h.clock(), objs, 0, true) {
			h.scrubbing, h.scrubAt = luns, w.now
			w.trace("node %v scrubs LUNs %v", h.id, luns)
		}
	})
}

// scrubbedObject is one that a scrub compares: another snapshot may be in its place by the end.
type scrubbedObject struct {
	index int
	born  uint64
}

func (o scrubbedObject) String() string { return fmt.Sprint(o.index) }

// bornAt is when the snapshot was begun that is at an index, 0 for a LUN.
func (h *host) bornAt(index int) uint64 {
	if slot := index - h.w.shape.luns; slot >= 0 {
		return h.disk.meta.Snaps[slot].Born
	}
	return 0
}

// flip changes a block of a LUN that h owns at its partner, if both are well. Not where busy disks
// are all that is wrong: the repair of the range is one write that all others of the LUN wait for,
// and alone does not show that the partner's disk makes progress.
func (w *world) flip(h *host) {
	if w.onlyBusy() {
		return
	}
	peer := w.nodes[h.id.Peer()]
	for _, x := range w.nodes {
		if x.scrubbing != nil || x.m == nil || x.frozenNow() || x.phase != pair.Paired || x.excluding || x.disk.suspect() || x.sick || !x.m.Serving(x.clock()) {
			return
		}
	}
	l, b := w.rnd.IntN(w.shape.luns), w.rnd.IntN(w.shape.blocks)
	for _, x := range w.nodes {
		if o, _ := x.m.Owner(w.luns[l]); o != h.id {
			return
		}
	}
	flip := uint64(1) << w.rnd.IntN(64)
	if w.shape.sums && !h.disk.good(l, b/w.shape.group) {
		return // the good copy of it is the partner's
	}
	peer.disk.luns[l][b].flip = flip
	w.rots(l, b/max(w.shape.group, 1))
	w.flips++
	w.mark(markFlip)
	w.trace("node %v: LUN %d block %d changes without a write", peer.id, l+1, b)
}

// unflip takes back what the disks changed without a write.
func (w *world) unflip() {
	if w.flips == 0 || w.shape.lone {
		return
	}
	for _, h := range w.nodes {
		for _, u := range h.disk.luns {
			for i := range u {
				u[i].flip = 0
			}
		}
		h.disk.believe()
	}
}

// flipped reports whether any disk has a block that it has changed without a write.
func (w *world) flipped() bool {
	if w.shape.lone {
		return w.lost() != ""
	}
	return w.nodes[0].disk.flipped() != "" || w.nodes[1].disk.flipped() != ""
}

// flipped names a block that the disk has changed without a write.
func (d *disk) flipped() string {
	for l := range d.luns {
		if what := d.flippedIn(l); what != "" {
			return what
		}
	}
	return ""
}

func (d *disk) flippedIn(l int) string {
	for b := range d.luns[l] {
		if d.luns[l][b].flip != 0 {
			return fmt.Sprintf("LUN %d block %d", l+1, b)
		}
	}
	return ""
}

// lookAtScrub judges a scrub that has ended, and what it has found: two members are alike.
func (h *host) lookAtScrub(v *pair.View) {
	w, peer := h.w, h.w.nodes[h.id.Peer()]
	if n := h.m.Stats.ScrubMismatches; n != h.mismatches {
		h.mismatches = n
		if w.flips == 0 && h.harmed < 0 && peer.harmed < 0 && peer.errors == 0 && !peer.sick { // a range that cannot be read differs
			w.fail("R5: a scrub of node %v finds that the copies differ", h.id)
		}
	}
	if h.scrubbing == nil || v.Scrub.Active {
		return
	}
	luns := h.scrubbing
	h.scrubbing = nil
	if v.Scrub.Reason != "" || v.Scrub.Skipped > 0 {
		return
	}
	w.mark(markScrubbed)
	for _, l := range luns {
		if w.damagedAt > h.scrubAt {
			break
		}
		if peer.bornAt(l.index) != l.born {
			continue // made again since, of a LUN that was not what it was
		}
		if what := peer.disk.flippedIn(l.index); what != "" {
			w.fail("scrub: node %v has compared everything, and %s at node %v is not what it was", h.id, what, peer.id)
		}
	}
}
