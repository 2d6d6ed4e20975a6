package sim

import (
	"math/rand/v2"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// How snapshots are asked for: the LUN's owner prepares an object, holds the changes of the LUN
// until both nodes have begun to copy before they change anything, lets them continue, and marks
// the object. What an earlier proposer has left is undone first. One that cannot be marked is
// undone, and one whose proposer dies stays as it is until someone looks (look.go) or asks again.

// snapStep proposes an entry of a snapshot. next is given the index of the entry as well.
func (h *host) snapStep(lun, slot int, born uint64, s snapStep, next func(res scsi.Result, index uint64)) {
	h.moving++
	h.proposeFor(entry{LUN: lun, Snap: slot + 1, Step: s, Born: born}, func(res scsi.Result, index uint64) {
		h.moving--
		h.w.trace("node %v proposed %v of snapshot %d of LUN %d, born %d: %v", h.id, s, slot+1, lun+1, born, resultName(res))
		next(res, index)
	})
}

// snapshotOf takes a snapshot of a LUN. before comes between the preparation and the hold.
func (h *host) snapshotOf(lun, slot int, before func(next func())) {
	w := h.w
	if h.disk.misfit[lun] || !h.m.Serving(h.clock()) {
		return // refused
	}
	if before == nil {
		before = func(next func()) { next() }
	}
	prepare := func() {
		h.snapStep(lun, slot, 0, snapPrepare, func(res scsi.Result, born uint64) {
			if res == scsi.OK {
				before(func() { h.markIt(lun, slot, born) })
			}
		})
	}
	undo := func(s snapStep, born uint64) {
		h.snapStep(lun, slot, born, s, func(res scsi.Result, _ uint64) {
			if res == scsi.OK {
				prepare()
			}
		})
	}
	switch s := h.disk.meta.Snaps[slot]; s.Stage {
	case stageReady:
		if w.lazily(0.3) { // else it stays
			undo(snapDelete, s.Born)
		}
	case stageMarked:
		if w.lazily(0.3) { // its caller has given it up
			undo(snapAbort, s.Born)
		}
	case stagePrepared:
		w.mark(markSnapUndone)
		undo(snapAbort, s.Born)
	default:
		prepare()
	}
}

// markIt is the instant of a snapshot, while nothing writes to the LUN, and its entry.
func (h *host) markIt(lun, slot int, born uint64) {
	undo := func() { h.snapStep(lun, slot, born, snapAbort, func(scsi.Result, uint64) {}) }
	h.holding(lun, h.m.QuiesceChanges, undo, func(q uint64, release func()) {
		h.beginsBoth(slot, born, func(ok bool) {
			if !ok || !h.m.Fix(h.clock(), q) {
				release()
				undo()
				return
			}
			h.snapStep(lun, slot, born, snapMark, func(res scsi.Result, _ uint64) {
				if res != scsi.OK && res != scsi.Unavailable {
					undo()
				}
			})
			release()
		})
	})
}

// lazily draws from what nothing but the choice of snapshots draws from.
func (w *world) lazily(p float64) bool { return w.lazy.Float64() < p }

// owner is the node that owns a LUN.
func (w *world) owner(lun int) *host {
	for _, h := range w.nodes {
		if h.m != nil {
			if o, _ := h.m.Owner(w.luns[lun]); o == h.id {
				return h
			}
		}
	}
	return nil
}

// planSnapshots asks the LUN's owner, as hosts of the interface do, and now and then deletes one,
// so that slots are used again.
func (w *world) planSnapshots() {
	for range w.rnd.IntN(6) {
		slot := w.rnd.IntN(snapSlots)
		lun := slot % w.shape.luns
		w.after(w.rnd.Int64N(w.shape.length), func() {
			if h := w.owner(lun); h != nil {
				h.when(h.life, func() { h.snapshotOf(lun, slot, nil) })
			}
		})
	}
	w.lazy = rand.New(rand.NewPCG(w.cfg.Seed, 0x6c617a79))
	for range w.lazy.IntN(3) {
		slot := w.lazy.IntN(snapSlots)
		w.after(w.lazy.Int64N(w.shape.length), func() { w.deleteSnap(slot) })
	}
}

func (w *world) deleteSnap(slot int) {
	h := w.owner(slot % w.shape.luns)
	if h == nil || h.disk.meta.Snaps[slot].Stage != stageReady || !h.m.Serving(h.clock()) {
		return
	}
	h.when(h.life, func() {
		h.snapStep(slot%w.shape.luns, slot, h.disk.meta.Snaps[slot].Born, snapDelete, func(res scsi.Result, _ uint64) {
			if res == scsi.OK {
				w.mark(markSnapDeleted)
			}
		})
	})
}

// snapFaults are what befalls snapshots; they come on request only.
func (w *world) snapFaults() []fault {
	return []fault{
		{"snapshot during a transfer", func() bool {
			h := w.any()
			slot := w.rnd.IntN(snapSlots)
			lun := slot % w.shape.luns
			if h.m == nil || h.phase != pair.Paired || w.owner(lun) != h {
				return false
			}
			life := h.life
			h.snapshotOf(lun, slot, func(next func()) {
				h.transfer(lun)
				w.after(w.even(0, 3*ms), func() { h.when(life, next) })
			})
			return true
		}},
		{"snapshot while joining", func() bool {
			for _, h := range w.nodes {
				if h.m != nil && !h.frozenNow() && h.resyncing && h.phase == pair.Alone {
					w.snapsAtJoiner(h, w.nodes[h.id.Peer()])
					return true
				}
			}
			return false
		}},
		{copyTroubleName, w.troublesCopy},
		{snapAgainName, w.snapsAgain},
	}
}

// snapsAtJoiner takes a snapshot while the peer is copied to. In half of the cases the joiner is so
// slow that the source commits the snapshot before the joiner has it. Then one of them dies.
func (w *world) snapsAtJoiner(source, joiner *host) {
	slot, until := w.rnd.IntN(snapSlots), 20*ms
	if w.chance(0.5) {
		joiner.slow, until = w.even(10*ms, 80*ms), 500*ms
		w.until(300*ms, 600*ms, func() { joiner.slow = 0 })
	}
	life := source.life
	w.after(w.between(0, 20*ms), func() {
		source.when(life, func() { source.snapshotOf(slot%w.shape.luns, slot, nil) })
	})
	x := w.any()
	w.after(w.even(ms, until), func() { w.crash(x, false) })
}

const (
	copyTroubleName = "trouble while a snapshot is copied"
	snapAgainName   = "slot used again while its commit is late"
)

// troublesCopy takes a snapshot, and something befalls the pair between the instant and the end of
// the copies.
func (w *world) troublesCopy() bool {
	slot := w.rnd.IntN(snapSlots)
	lun := slot % w.shape.luns
	h := w.owner(lun)
	if h == nil || !w.arb.exists || h.frozenNow() || !h.m.Serving(h.clock()) || h.disk.misfit[lun] || h.disk.marking(lun) {
		return false
	}
	if s := h.disk.meta.Snaps[slot]; s.Stage == stageReady {
		w.deleteSnap(slot)
		return false
	}
	peer := w.nodes[h.id.Peer()]
	chair := w.nodes[w.arb.rec.Chair()]
	trouble := []func(){
		func() { w.crash(h, false) },
		func() { w.crash(peer, false) },
		func() { w.crash(chair, false) },
		func() { w.crash(w.any(), true) },
		func() { w.bothPower() },
		func() { w.bothKilled(10*ms, 300*ms) },
		w.killsSource,
		func() { w.transfer(lun) },
		func() { chair.freeze(w.between(50*ms, 2*s)) },
		func() { w.cutFor(w.even(ms, 900*ms)) },
		func() { h.full = true; w.until(20*ms, 300*ms, func() { h.full = false }) },
		func() { peer.full = true; w.until(20*ms, 300*ms, func() { peer.full = false }) },
	}[w.rnd.IntN(12)]
	w.atMark = func() { w.after(w.between(0, 250*ms), trouble) }
	h.when(h.life, func() { h.snapshotOf(lun, slot, nil) })
	return true
}

// killsSource ends both processes, and the one that copies to the other once more when it has done
// so: the copy that it made in its first life is what both have then.
func (w *world) killsSource() {
	w.bothKilled(10*ms, 100*ms)
	until := w.now + 2*s
	var look func()
	look = func() {
		for _, h := range w.nodes {
			if h.m != nil && h.phase == pair.Paired && w.arb.rec.Both() && w.arb.rec.Chair() == h.id && w.nodes[h.id.Peer()].m != nil {
				w.after(w.between(0, 20*ms), func() { w.crash(h, false) })
				return
			}
		}
		if w.now < until && !w.healed {
			w.after(2*ms, look)
		}
	}
	w.after(ms, look)
}

// snapsAgain has the answers to looks at a copy come late, while its slot is used again.
func (w *world) snapsAgain() bool {
	slot := w.rnd.IntN(snapSlots)
	lun := slot % w.shape.luns
	if h := w.owner(lun); h == nil || h.frozenNow() || h.phase != pair.Paired || h.disk.meta.Snaps[slot].Stage == stageReady {
		w.deleteSnap(slot)
		return false
	}
	w.lateLooks = w.now + 2*s
	for i := range int64(8) {
		w.after(i*100*ms+w.even(0, 200*ms), func() {
			h := w.owner(lun)
			if h == nil || h.frozenNow() {
				return
			}
			h.when(h.life, func() {
				if s := h.disk.meta.Snaps[slot]; s.Stage == stageMarked {
					h.snapStep(lun, slot, s.Born, snapAbort, func(res scsi.Result, _ uint64) {
						if res == scsi.OK {
							h.snapshotOf(lun, slot, nil)
						}
					})
					return
				}
				h.snapshotOf(lun, slot, nil)
			})
		})
	}
	return true
}
