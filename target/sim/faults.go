package sim

// fault is something that goes wrong. do returns false when it could not happen at this moment.
type fault struct {
	name string
	do   func() bool
}

// planFaults draws the faults of a history: a few kinds of them ("swarm"), several times each. One that can not happen
// when it is due is tried again a little later, so that every history has some.
func (w *world) planFaults() {
	kinds := w.faults()
	w.rnd.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	length := w.shape.length
	for _, k := range kinds[:w.shape.kinds] {
		for range 1 + w.rnd.IntN(3) {
			w.after(500*ms+w.rnd.Int64N(length-500*ms), func() { w.inject(k) })
		}
	}
	// Transfers are no fault but what faults have to meet.
	for range 1 + w.rnd.IntN(6) {
		lun := w.rnd.IntN(w.shape.luns)
		w.after(w.rnd.Int64N(length), func() { w.transfer(lun) })
	}
	// However the dice fall, something happens.
	w.after(length-100*ms, func() {
		if w.injected == 0 {
			w.inject(fault{"link reset", func() bool { w.net.drop("reset"); return true }})
		}
	})
}

func (w *world) inject(k fault) {
	if w.healed {
		return
	}
	if !k.do() {
		w.after(10*ms, func() { w.inject(k) })
		return
	}
	w.injected++
	w.res.Faults[k.name]++
	w.trace("FAULT %s", k.name)
}

func (w *world) transfer(lun int) {
	for _, h := range w.nodes {
		if h.m != nil {
			if o, _ := h.m.Owner(w.luns[lun]); o == h.id {
				w.res.Faults["transfer"]++
				h.transfer(lun)
				return
			}
		}
	}
}

// lag is how slow something slow is: a little as a rule, more than a lease sometimes.
func (w *world) lag() int64 {
	if w.chance(0.4) {
		return w.even(ms, 900*ms)
	}
	return w.between(ms, 300*ms)
}

func (w *world) any() *host { return w.nodes[w.rnd.IntN(2)] }

// until ends a fault after a while.
func (w *world) until(lo, hi int64, end func()) bool {
	w.after(w.between(lo, hi), end)
	return true
}

func (w *world) faults() []fault {
	all := []fault{
		{"kill", func() bool { return w.crash(w.any(), false) }},
		{"power", func() bool { return w.crash(w.any(), true) }},
		{"stop", func() bool { return w.any().freeze(w.between(50*ms, 4*s)) }},
		{"partition", func() bool { return w.partition(true, true) }},
		{"one way", func() bool { b := w.chance(0.5); return w.partition(b, !b) }},
		{"link reset", func() bool { w.net.drop("reset"); return true }},
		{"lossy link", func() bool {
			for range 2 + w.rnd.IntN(5) {
				w.after(w.rnd.Int64N(s), func() { w.net.drop("lost packets") })
			}
			return true
		}},
		{"slow link", func() bool {
			d := w.rnd.IntN(2)
			w.net.slow[d] = w.lag()
			if w.chance(0.5) {
				w.net.slow[1-d] = w.lag()
			}
			return w.until(100*ms, 1500*ms, func() { w.net.slow = [2]int64{} })
		}},
		{"data stuck", func() bool {
			d := w.rnd.IntN(2)
			w.net.stuck[d] = true
			return w.until(100*ms, 3*s, func() { w.net.unstick(d) })
		}},
		{"slow disk", func() bool {
			h := w.any()
			h.slow = w.lag()
			if w.chance(0.1) {
				h.slow, h.sick = 2*w.shape.mirrorMax, h.m != nil // it does not answer any more
			}
			return w.until(100*ms, s, func() { h.slow = 0 })
		}},
		{"full disk", func() bool {
			h := w.any()
			h.full = true
			return w.until(100*ms, 2*s, func() { h.full = false })
		}},
		{"disk errors", func() bool { return w.diskErrors(w.any()) }},
		{"disk replaced", func() bool { return w.replace(w.any()) }},
		{"arbiter down", func() bool {
			w.arb.down = true
			return w.until(200*ms, 3*s, func() { w.arb.down = false })
		}},
		{"arbiter flaky", func() bool {
			w.arb.flaky = true
			return w.until(200*ms, 3*s, func() { w.arb.flaky = false })
		}},
		{"arbiter slow", func() bool {
			w.arb.slow = true
			return w.until(200*ms, 3*s, func() { w.arb.slow = false })
		}},
		{"both killed", func() bool {
			for _, h := range w.nodes {
				h.kill(false)
				w.after(w.between(10*ms, s), h.boot)
			}
			return true
		}},
		{"session lost", func() bool {
			n := 0
			for _, c := range w.clients {
				if c.cur != nil && w.chance(0.7) {
					c.giveUp()
					n++
				}
			}
			return n > 0
		}},
	}
	all = append(all, w.compound()...)
	if w.cfg.OldDisk {
		all = append(all, fault{"disk restored", func() bool { return w.restore(w.any()) }})
	}
	if w.cfg.BothPower {
		all = append(all, fault{"both lose power", w.bothPower})
	}
	if w.cfg.ArbiterLoss {
		all = append(all, fault{"arbiter forgets", w.arb.forget})
	}
	return all
}

// compound are faults that come together: what one delays the other overtakes. Drawn apart they meet too rarely.
func (w *world) compound() []fault {
	return []fault{
		{"slow disk, then the peer dies", func() bool {
			h := w.any()
			peer := w.nodes[h.id.Peer()]
			if h.m == nil || peer.m == nil {
				return false
			}
			h.slow = w.even(100*ms, 900*ms)
			w.after(w.even(5*ms, 200*ms), func() {
				peer.kill(false)
				w.after(w.even(5*ms, 50*ms), peer.boot)
			})
			return w.until(300*ms, s, func() { h.slow = 0 })
		}},
		{"slow disk, then cut off", func() bool {
			h := w.any()
			h.slow = w.even(600*ms, 1500*ms)
			w.after(w.even(5*ms, 200*ms), func() { w.cutFor(w.even(550*ms, 1200*ms)) })
			return w.until(600*ms, s, func() { h.slow = 0 })
		}},
		{"joining over a flaky arbiter", func() bool {
			if !w.nodes[0].resyncing && !w.nodes[1].resyncing {
				return false
			}
			w.arb.flaky = true
			w.after(w.even(0, 60*ms), func() { w.net.drop("reset while joining") })
			return w.until(s, 3*s, func() { w.arb.flaky = false })
		}},
		{"cut off and the arbiter flaky", func() bool {
			w.arb.flaky = true
			w.cutFor(w.even(500*ms, 1200*ms))
			return w.until(s, 3*s, func() { w.arb.flaky = false })
		}},
	}
}

// cutFor cuts the link in both directions for a while.
func (w *world) cutFor(d int64) {
	w.net.cut = [2]bool{true, true}
	w.after(d, func() {
		w.net.uncut(0)
		w.net.uncut(1)
	})
}

func (w *world) crash(h *host, power bool) bool {
	if h.m == nil || power && !w.redundant(h) {
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

// redundant tells whether what h holds beyond stable storage is safe elsewhere: the record names both nodes as they run, and
// nothing that h has asked for can change that. Losing what is in one place only is promised to nobody.
func (w *world) redundant(h *host) bool {
	rec := &w.arb.rec
	switch {
	case w.arb.flight[h.id] > 0 || w.arb.lost || len(rec.Members) == 0:
		return false
	case rec.Member(h.id) == nil:
		return true
	case !rec.Both():
		return !h.disk.unflushed() && !h.disk.suspect() && !h.sick
	}
	for _, m := range rec.Members {
		x := w.nodes[m.Node]
		if x.bootID() != m.Incarnation.Boot || x.disk.id != m.Store || x.disk.suspect() || x.errors != 0 || x.sick {
			return false
		}
	}
	return true
}

func (w *world) partition(ab, ba bool) bool {
	w.net.cut[0] = w.net.cut[0] || ab
	w.net.cut[1] = w.net.cut[1] || ba
	return w.until(50*ms, 3*s, func() {
		if ab {
			w.net.uncut(0)
		}
		if ba {
			w.net.uncut(1)
		}
	})
}

// diskErrors: reads, writes or flushes of a node fail from now on, until somebody sees to it.
func (w *world) diskErrors(h *host) bool {
	if h.m == nil || !w.spareable(h) || h.errors != 0 {
		return false
	}
	h.errors = []ioKind{ioWrite, ioFlush, ioRead, ioWrite | ioFlush, ioWrite | ioFlush | ioRead}[w.rnd.IntN(5)]
	w.trace("node %v: the disk refuses %03b (read, flush, write)", h.id, h.errors)
	return w.until(200*ms, 1500*ms, h.repair)
}

// repair is the administrator who finds a node whose disk has failed: the process is started again, on the same disk,
// which is not trusted now if it failed to write, or on an empty one.
func (h *host) repair() {
	w := h.w
	h.errors = 0
	if h.m == nil || !h.sick || h.frozenNow() {
		return
	}
	h.kill(false)
	if h.disk.untrusted && w.chance(0.5) && w.spareable(h) {
		h.newDisk()
	}
	w.after(w.between(20*ms, 300*ms), h.boot)
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

// restore brings back an old copy of a node's disk, as a snapshot of a virtual machine would. It is older by at least two
// epochs: by one is what a crash may leave too.
func (w *world) restore(h *host) bool {
	if h.snapshot == nil || h.snapshot.id != h.disk.id {
		h.snapshot = nil
		if h.m != nil && w.redundant(h) {
			h.snapshot = h.disk.image()
		}
		return false
	}
	if h.m == nil || w.arb.rec.Epoch < h.snapshot.epoch+2 || !w.spareable(h) {
		return false
	}
	h.kill(false)
	h.disk, h.snapshot, h.harmed = h.snapshot, nil, w.now
	h.disk.old = true
	w.mark(markRestored)
	w.trace("node %v gets an old copy of its disk, of epoch %d", h.id, h.disk.epoch)
	return w.until(20*ms, 2*s, h.boot)
}

// bothPower: nothing that was not flushed survives for certain (R8).
func (w *world) bothPower() bool {
	for _, m := range w.arb.rec.Members {
		if h := w.nodes[m.Node]; h.disk.id != m.Store || h.disk.suspect() || h.errors != 0 || h.sick {
			return false // its only copy of something may be about to go: that takes an administrator
		}
	}
	if w.nodes[0].m == nil || w.nodes[1].m == nil || len(w.arb.rec.Members) == 0 {
		return false
	}
	first := w.nodes[w.rnd.IntN(2)]
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
