package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// In some histories a file of a LUN or a snapshot is lost, or cut off, while its node is stopped.
// The node's next process finds that by its length. Where the peer was a member, that object is
// copied whole, and nothing else for it. A lone member serves the rest, and copies nothing from
// what it lacks, until the file is put back.

const lostFileName = "lost file"

// planLostFiles spreads them over one history in ten, drawn from what nothing else draws from.
func (w *world) planLostFiles() {
	r := rand.New(rand.NewPCG(w.cfg.Seed, 0x66696c65))
	if w.cfg.Plain || w.busy() || w.remote() || w.onlyBusy() || r.Float64() >= 0.1 {
		return
	}
	for range 1 + r.IntN(3) {
		w.after(300*ms+r.Int64N(w.shape.length), func() { w.inject(fault{lostFileName, w.losesFile}) })
	}
}

// losesFile has a file lost at a node: one whose peer has everything, or the lone member.
func (w *world) losesFile() (done bool) {
	w.rotting(func() {
		h := w.any()
		peer := w.nodes[h.id.Peer()]
		me := w.arb.rec.Member(h.id)
		lone := h.m != nil && h.phase == pair.Alone && me != nil && !w.arb.rec.Both() && me.Store == h.disk.id && !h.resyncing && h.m.Serving(h.clock())
		if h.m == nil || h.frozenNow() || h.disk.old || h.disk.misfits() != "" || h.errors != 0 || h.sick || peer.disk.suspect() || w.arb.lost || w.arb.flight[0]+w.arb.flight[1] > 0 ||
			!lone && !w.spareable(h) {
			return
		}
		done = true
		h.kill(!lone && w.chance(0.3))
		object := w.rnd.IntN(w.shape.luns)
		if slot := w.rnd.IntN(2 * snapSlots); !lone && slot < snapSlots && h.disk.meta.Snaps[slot].Stage == stageReady {
			object = w.shape.luns + slot
		}
		if lone {
			h.putBackLater(object)
		}
		h.disk.reset(object)
		h.disk.misfit[object], h.harmed = true, w.now
		w.mark(markLostFile)
		w.trace("node %v: the file of object %d is lost", h.id, object+1)
		w.until(20*ms, 2*s, h.boot)
	})
	return done
}

// putBackLater has a person put the file back that is about to be lost, while the node is stopped
// once more.
func (h *host) putBackLater(object int) {
	w, d := h.w, h.disk
	pages := append([]page(nil), d.luns[object]...)
	for i := range pages {
		p := &pages[i]
		p.stable, p.dirty, p.kept = p.cache, false, p.written
	}
	var sums []checksum
	if d.pages > 0 {
		sums = append(sums, d.sums[object]...)
	}
	done := false
	back := func() {
		if done || h.disk != d || !d.misfit[object] {
			return // another disk, or one that has been copied to
		}
		done = true
		was := h.m != nil
		h.kill(false)
		copy(d.luns[object], pages)
		if d.pages > 0 {
			copy(d.sums[object], sums)
		}
		d.misfit[object] = false
		w.mark(markPutBack)
		w.trace("node %v: the file of object %d is put back", h.id, object+1)
		if was {
			w.after(w.between(20*ms, 200*ms), h.boot)
		}
	}
	w.away = append(w.away, back)
	w.after(w.even(s, 4*s), back)
}

// misfits says which file a process that starts finds to be lost, "" if none is.
func (d *disk) misfits() string {
	for object, lost := range d.misfit {
		if lost {
			return fmt.Sprintf("the file of object %d is missing", object+1)
		}
	}
	return ""
}

// makeFiles makes the files of an installation again that were lost, to be copied whole.
func (d *disk) makeFiles() {
	for object, lost := range d.misfit {
		switch slot := object - len(d.bits); {
		case !lost:
		case slot >= 0:
			d.copying[slot] = d.meta.Snaps[slot].Born > 0
		default:
			d.recreated[object], d.bits[object] = true, pair.Regions{}
		}
		d.misfit[object] = false
	}
}

// fenced is how a command for a LUN ends whose file is lost.
func fenced(o *scsi.Op) scsi.Result {
	if o.Kind.Writes() {
		return scsi.WriteError
	}
	return scsi.ReadError
}
