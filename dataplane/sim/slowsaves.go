package sim

import "slices"

// A disk may need longer than a lease to make a node's own state durable, or the metadata that a
// source has sent: it is busy with the data of hosts. From then on that holds until the end of the
// history, also when all faults are over: that a node takes long to act on a record must not keep
// the two from being members.

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
	return true
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

// installTime is between which bounds an installation takes.
func (h *host) installTime() (lo, hi int64) {
	if h.saves == usualSave {
		return ms, 20 * ms
	}
	return h.saves.least, h.saves.most
}
