package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A disk may need longer than a lease to make a node's own state durable, an entry of the log, or
// the metadata that a source has sent: it is busy with the data of hosts. From then on that holds
// until the end of the history, also when all faults are over: that a node takes long to act on a
// record must not keep the two from being members, nor must callers that always have a next change.

const slowSavesName = "slow saves"

// sluggish histories are one of sixteen.
func (w *world) sluggish() bool {
	return w.cfg.Seed%16 == 10 && !w.cfg.Plain && len(w.cfg.With) == 0 || slices.Contains(w.cfg.With, slowSavesName)
}

// lease is the length of a lease.
const lease = 500 * ms

// saveTime is how long a node's own state takes to become durable, at least and at most.
type saveTime struct{ least, most int64 }

var usualSave = saveTime{200 * us, 10 * ms}

// slowSaves makes one node slow, or both.
func (w *world) slowSaves() bool {
	w.rotting(func() {
		first, both := w.rnd.IntN(2), w.chance(0.4)
		for i, h := range w.nodes {
			if i == first || both {
				least := w.even(lease/2, min(2*lease, w.shape.mirrorMax/2))
				h.saves = saveTime{least, least + w.even(0, w.shape.mirrorMax/4)} // a disk that needs Dm is late
			}
		}
	})
	if !w.calling {
		w.calling = true
		for range callers {
			w.calls()
		}
	}
	return true
}

// callers is how many callers at once have changes of the metadata, each the next one when it has
// the answer: the log is never idle until both nodes are members.
const callers = 3

func (w *world) calls() {
	if w.healed && w.unserved() == 0 && w.nodes[0].phase == pair.Paired && w.nodes[1].phase == pair.Paired {
		return
	}
	h := w.any()
	if h.m == nil || h.frozenNow() || !h.m.Serving(h.clock()) {
		w.after(20*ms, w.calls)
		return
	}
	w.notes++
	life, ended := h.life, false
	h.moving++
	h.propose(entry{Note: w.notes}, func(scsi.Result) {
		h.moving--
		ended = true
		w.after(w.even(0, 10*ms), w.calls)
	})
	var watch func()
	watch = func() { // a process that has died answers nothing
		switch {
		case ended:
		case h.life != life:
			w.calls()
		default:
			w.after(200*ms, watch)
		}
	}
	w.after(200*ms, watch)
}

// saving is a save of the node's own state.
func (h *host) saving(effect, done func()) {
	begun := h.w.now
	h.later(h.saves.least, h.saves.most, func(func() bool) { effect() }, func() {
		if h.w.now-begun > lease {
			h.w.mark(markSlowSave)
		}
		done()
	})
}

// takes is how long something else of the metadata takes to become durable: between lo and hi, or
// as long as a save.
func (h *host) takes(lo, hi int64) (least, most int64) {
	if h.saves == usualSave {
		return lo, hi
	}
	return h.saves.least, h.saves.most
}

// Callers that ask for the same while that is under way share its outcome, as those of a node share
// entries: on a slow disk what is repeated once a second would wait for itself.

// shares has done wait for an equal entry that is under way at this node, if there is one.
func (h *host) shares(raw string, done func(scsi.Result, uint64)) bool {
	id, ok := h.under[raw]
	first := h.moves[id]
	if !ok || first == nil || !h.w.sluggish() {
		return false
	}
	h.moves[id] = func(res scsi.Result, index uint64) {
		first(res, index)
		done(res, index)
	}
	return true
}

// shared notes an entry that is under way.
func (h *host) shared(raw string, id uint64) {
	if h.under == nil {
		h.under = map[string]uint64{}
	}
	h.under[raw] = id
}
