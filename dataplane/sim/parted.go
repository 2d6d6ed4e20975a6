package sim

import "github.com/gemel-storage/gemel/dataplane/pair"

// Records that change over the head of a lone member (R2): an administrator forces the other node
// and has not stopped this one, or the arbiter is set back and the other node, which has not heard
// of its exclusion yet, continues from there.

// partTime bounds how long the nodes stay cut off while the moment for it is waited for.
const partTime = 6 * s

// part cuts the nodes off from each other until one of them is alone, then has do change the
// record. It begins once the pair is well; who is alone and who is out is for the protocol to
// decide.
func (w *world) part(do func(lone, other *host) bool) bool {
	if !w.well() {
		return false
	}
	w.net.cut = [2]bool{true, true}
	w.net.drop("cut off")
	until := w.now + partTime
	var look func()
	look = func() {
		w.net.cut = [2]bool{true, true} // whatever another fault has healed
		for i, h := range w.nodes {
			if other := w.nodes[1-i]; w.alone(h) && other.m != nil && !other.frozenNow() && do(h, other) {
				w.aside(func() { w.after(w.even(100*ms, 4*s), func() { w.net.heal() }) })
				w.after(100*ms, func() { w.reunite(h) })
				return
			}
		}
		if w.healed || w.now > until {
			w.net.heal()
			return
		}
		w.after(20*ms, look)
	}
	w.after(200*ms, look)
	return true
}

// well reports that both nodes are members and run, and that no person is at work.
func (w *world) well() bool {
	for _, h := range w.nodes {
		if h.m == nil || h.frozenNow() || h.phase != pair.Paired || h.sick || h.disk.suspect() || w.arb.lost || w.parted > 0 || w.admin.stopped != nil {
			return false
		}
	}
	return true
}

// alone reports a lone member that serves.
func (w *world) alone(h *host) bool {
	return h.m != nil && !h.frozenNow() && h.phase == pair.Alone && !h.sick && h.m.Serving(h.clock()) && !w.arb.lost &&
		!w.arb.down && w.arb.flight[0]+w.arb.flight[1] == 0 && w.admin.stopped == nil
}

// forceOther is an administrator who has not made sure that the other node is stopped.
func (w *world) forceOther(lone, other *host) bool {
	v := other.m.View(other.clock())
	if v.Phase != pair.Outside || v.ForceEpoch == 0 || v.Linked || other.disk.suspect() || w.arb.flaky || w.arb.slow {
		return false
	}
	ok := false
	other.when(other.life, func() {
		err := other.m.Force(other.clock(), v.ForceEpoch)
		w.trace("ADMINISTRATOR forces node %v at epoch %d while node %v serves: %v", other.id, v.ForceEpoch, lone.id, err)
		ok = err == nil
		w.admin.ever[other.id] = w.admin.ever[other.id] || ok
	})
	return ok
}

// forceStanding: the lone member is paused with its clocks while the other one is forced, and
// continues when that one serves.
func (w *world) forceStanding(lone, other *host) bool {
	return w.forceOther(lone, other) && lone.standStill(w.even(3500*ms, 5*s))
}

// forceStopped: the partner does not run while its peer becomes alone, then applies what is on its
// way to it. The lone member ends, and the partner is forced.
func (w *world) forceStopped() bool {
	if !w.well() {
		return false
	}
	lone := w.any()
	other := w.nodes[lone.id.Peer()]
	if !other.freeze(w.even(600*ms, 1500*ms)) {
		return false
	}
	until := w.now + partTime
	var look func()
	look = func() {
		runs := other.m != nil && !other.frozenNow()
		switch {
		case w.healed || w.now > until:
			lone.boot()
			return
		case lone.m == nil && runs && w.forceOther(lone, other):
			w.after(w.even(5*ms, 300*ms), lone.boot)
			w.after(100*ms, func() { w.reunite(lone) })
			return
		case w.alone(lone) && runs && other.phase == pair.Outside:
			lone.kill(false)
		}
		w.after(10*ms, look)
	}
	w.after(10*ms, look)
	return true
}

// setBack is an arbiter that was restored to an earlier record, while the node that was excluded
// has not heard of that. It takes over as it may, and for a while there are two: what hosts see
// then is nothing that one disk could give, and is not judged.
func (w *world) setBack(lone, other *host) bool {
	a := &w.arb
	v := other.m.View(other.clock())
	if v.Phase != pair.Paired || v.Record.Epoch+1 != a.rec.Epoch || len(a.past) < 2 || lone.disk.epoch != a.rec.Epoch || other.disk.suspect() {
		return false
	}
	a.rec = a.past[len(a.past)-2]
	a.past = a.past[:len(a.past)-1]
	a.version++
	w.parted, w.truth.off = w.now, true
	w.trace("arbiter: set back to epoch %d while node %v is alone", a.rec.Epoch, lone.id)
	return true
}

// exposure is for how long a lone member may serve after the record names another node: the period
// of its looks, one call, drift.
const exposure = 2*s + callTimeout + 100*ms

// partedNow tells whether two nodes may be alone at this moment. The other one has waited for less
// than two leases when it takes over.
func (w *world) partedNow() bool { return w.parted > 0 && w.now < w.parted+2*s+exposure }

// reunite is the administrator who finds the fenced node and decides for the other: what it holds
// beyond that is given up. One that shares its epoch with the other's record starts with an empty
// disk.
func (w *world) reunite(h *host) {
	peer := w.nodes[h.id.Peer()]
	switch {
	case w.stopped, h.phase == pair.Paired && h.m != nil && h.m.Serving(h.clock()):
		return
	case h.m == nil || h.frozenNow() || peer.m == nil || w.admin.stopped != nil || w.arb.lost: // first she names a node
	case h.phase == pair.Fenced && peer.phase == pair.Alone:
		w.trace("ADMINISTRATOR gives up what node %v has beyond node %v", h.id, peer.id)
		w.deadline = max(w.deadline, w.now+w.wellWithin())
		h.kill(false)
		if h.disk.epoch == peer.epoch {
			w.mark(markForked)
			h.newDisk()
		} else {
			w.mark(markTaken)
		}
		w.after(50*ms, h.boot)
		return
	}
	w.after(100*ms, func() { w.reunite(h) })
}
