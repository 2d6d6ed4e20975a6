package sim

// Nodes that die, and disks that fail, are replaced, or come back from the past.

func (w *world) crash(h *host, power bool) bool {
	if h.m == nil || power && w.nodes[h.id.Peer()].disk.old {
		return false
	}
	if power && h.disk.unflushed() {
		w.mark(markPowerUnflushed)
	}
	h.kill(power)
	if power && w.chance(0.3) {
		w.partition(true, true) // the switch is on the same feed
	}
	return w.until(20*ms, 3*s, h.boot)
}

// diskErrors: reads, writes or flushes of a node fail for a while, over restarts of its process
// too.
func (w *world) diskErrors(h *host) bool {
	if h.m == nil || !w.spareable(h) || h.errors != 0 {
		return false
	}
	h.errors = []ioKind{ioWrite, ioFlush, ioRead, ioWrite | ioFlush, ioWrite | ioFlush | ioRead}[w.rnd.IntN(5)]
	w.trace("node %v: the disk refuses %03b (read, flush, write)", h.id, h.errors)
	return w.until(200*ms, 1500*ms, func() { h.errors = 0 })
}

// spareable tells whether the peer has everything, so that h's disk may be taken away.
func (w *world) spareable(h *host) bool {
	peer := w.nodes[h.id.Peer()]
	m := w.arb.rec.Member(peer.id)
	return m != nil && m.Store == peer.disk.id && !peer.disk.suspect() && peer.m != nil && peer.errors == 0 && !peer.sick &&
		m.Incarnation.Boot == peer.bootID() && w.arb.flight[h.id] == 0 && !w.arb.lost
}

func (h *host) newDisk() {
	w := h.w
	h.disk = w.newDisk(h.id)
	h.harmed = w.now
	w.mark(markReplaced)
	w.trace("node %v gets an empty disk, %s", h.id, h.disk.id)
}

// replace is a node that dies for good and comes back with an empty disk.
func (w *world) replace(h *host) bool {
	if h.m == nil || !w.spareable(h) {
		return false
	}
	h.kill(false)
	h.newDisk()
	return w.until(20*ms, 2*s, h.boot)
}

// restore brings back an old copy of a node's disk, as a snapshot of a virtual machine would: the
// operating system starts again. A copy of the same boot may be put back beneath it only if it is
// two epochs old, for that is what its node can know by itself. Until it has been copied to, the
// peer keeps its page cache (crash, bothPower): if both nodes started from what is on their disks,
// a copy that is younger than the last checkpoint could become the source, and nothing could detect
// that.
func (w *world) restore(h *host) bool {
	if h.snapshot == nil || h.snapshot.id != h.disk.id {
		h.snapshot = nil
		if h.m != nil && !h.disk.suspect() && h.errors == 0 {
			h.snapshot, h.copied = h.disk.image(), w.now
		}
		return false
	}
	peer := w.nodes[h.id.Peer()]
	// Nor has the peer's disk been moved since that was a member's: its node is as one that has
	// rebooted then (R2b).
	if h.m == nil || w.now < h.copied+50*ms || !w.spareable(h) || peer.disk.life.Lock != peer.lock() {
		return false
	}
	if peer.disk.epoch < h.snapshot.epoch+2 {
		w.mark(markRestoredYoung)
	}
	h.kill(peer.disk.epoch < h.snapshot.epoch+2 || w.chance(0.5))
	h.disk, h.snapshot, h.harmed = h.snapshot, nil, w.now
	h.disk.old = true
	w.mark(markRestored)
	w.trace("node %v gets an old copy of its disk, of epoch %d, checkpoints %v", h.id, h.disk.epoch, h.disk.life.Check.Count)
	return w.until(20*ms, 2*s, h.boot)
}

// bothPower: nothing that was not flushed survives for certain (R8).
func (w *world) bothPower() bool {
	a, b := w.nodes[0], w.nodes[1]
	if a.m == nil || b.m == nil || a.disk.old || b.disk.old {
		return false
	}
	first := w.any()
	first.kill(true)
	w.after(w.between(0, 50*ms), func() {
		second := w.nodes[first.id.Peer()]
		second.kill(true)
		w.mark(markBothPower)
		for _, h := range w.nodes {
			w.after(w.between(20*ms, s), h.boot)
		}
	})
	return true
}
