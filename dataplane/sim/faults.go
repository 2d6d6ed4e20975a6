package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// fault is something that goes wrong. do returns false when it could not happen at this moment.
type fault struct {
	name string
	do   func() bool
}

// planFaults draws the faults of a history: a few kinds of them ("swarm"), several times each. One
// that cannot happen when it is due is tried again a little later, so that every history has some.
func (w *world) planFaults() {
	kinds := w.faults()
	w.rnd.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	length := w.shape.length
	n := w.shape.kinds
	for i, k := range kinds {
		if slices.Contains(w.cfg.With, k.name) && i >= n {
			kinds[i], kinds[n] = kinds[n], k
			n++
		}
	}
	if w.onlyBusy() {
		n = 0
	}
	for _, k := range w.onRequest() {
		if slices.Contains(w.cfg.With, k.name) || w.busy() && (k.name == overloadName || k.name == stopName) || w.remote() && k.name == farName || w.beside() && k.name == besideName || w.supervised() && k.name == supervisedName || w.sluggish() && k.name == slowSavesName {
			kinds = slices.Insert(kinds, n, k)
			n++
		}
	}
	for _, k := range kinds[:n] {
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
		if w.injected == 0 && !w.onlyBusy() {
			w.inject(fault{"link reset", func() bool { w.net.drop("reset"); return true }})
		}
	})
}

// FaultNames are the kinds of faults there are.
func FaultNames() (names []string) {
	w := &world{}
	for _, f := range append(w.faults(), w.onRequest()...) {
		names = append(names, f.name)
	}
	return names
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
		{"disk restored", func() bool { return w.restore(w.any()) }},
		{"both lose power", w.bothPower},
		{"arbiter forgets", w.arb.forget},
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
			w.bothKilled(10*ms, s)
			return true
		}},
		{"host cut off", w.cutHost},
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
	return append(all, w.compound()...)
}

// bothKilled ends both processes, each of which starts again after a while.
func (w *world) bothKilled(lo, hi int64) {
	for _, h := range w.nodes {
		h.kill(false)
		w.after(w.between(lo, hi), h.boot)
	}
}

// onRequest are situations that only Config.With brings about: so special that in every swarm they
// would crowd others out.
func (w *world) onRequest() []fault {
	return append([]fault{
		{overloadName, w.overload},
		{stopName, w.bothStop},
		{farName, w.goFar},
		{besideName, w.leaveOne},
		{slowSavesName, w.slowSaves},
		{supervisedName, func() bool { return w.crash(w.any(), false) }},
		{"forced while the other serves", func() bool { return w.part(w.forceOther) }},
		{"arbiter set back while one is alone", func() bool { return w.part(w.setBack) }},
		{"forced while the other is paused", func() bool { return w.part(w.forceStanding) }},
		{"disk moved while both are asked for", w.moveAsking},
		{"forced after it was stopped", w.forceStopped},
		{"clock stops", func() bool { return w.any().standStill(w.even(20*ms, 3*s)) }},
		{"wall clock set", func() bool { w.any().wall += w.even(-2*s, 2*s); return true }},
		{"answers stuck during a transfer", func() bool {
			lun := w.rnd.IntN(w.shape.luns)
			for _, h := range w.nodes {
				if !w.arb.exists || h.m == nil || h.frozenNow() || h.phase != pair.Paired {
					return false
				}
			}
			from := 1 - int(w.arb.rec.Chair())
			w.transfer(lun)
			w.after(w.even(0, 3*ms), func() {
				w.net.stuck[from] = true
				w.after(w.shape.mirrorMax+s, func() { w.net.unstick(from) })
			})
			return true
		}},
		{thereAndBackName, w.thereAndBack},
		{"log hangs", func() bool {
			h := w.any()
			if h.m == nil || h.frozenNow() || h.phase != pair.Paired || !w.spareable(h) {
				return false
			}
			h.owed.logHangs = true
			w.transfer(w.rnd.IntN(w.shape.luns))
			return true
		}},
		{"damage", func() (done bool) { w.rotting(func() { done = w.damage() }); return done }},
		{rotName, func() (done bool) { w.rotting(func() { done = w.decay(w.rnd.IntN(rotKinds)) }); return done }},
		{lostFileName, w.losesFile},
		{"disk moved", func() bool { return w.move(w.any()) }},
		{"owner dies after its partner has refused a write", w.diesRefused},
		{"lone disk moved and the arbiter set back", func() bool { return w.part(w.moveAndSetBack) }},
	}, append(w.snapFaults(), w.cutFaults()...)...)
}

// compound are faults that come together: what one delays the other overtakes. Drawn apart they
// meet too rarely.
func (w *world) compound() []fault {
	return []fault{
		{"slow disk and the peer dies", func() bool {
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
		{"slow disk and power at a checkpoint", func() bool {
			h := w.any()
			if h.m == nil {
				return false
			}
			h.slow = w.even(5*ms, 150*ms)
			h.atClear = func() { w.after(w.even(0, 5*ms), func() { w.crash(h, true) }) }
			return w.until(300*ms, s, func() { h.slow, h.atClear = 0, nil })
		}},
		{"slow disk and cut off", func() bool {
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

// diesRefused has an owner die while its partner, over which the host has sent a write, has refused
// that write half-way. The link and the arbiter are slow, so that the write is old when the partner
// is alone.
func (w *world) diesRefused() bool {
	if !w.well() {
		return false
	}
	w.net.slow = [2]int64{w.even(20*ms, 220*ms), w.even(20*ms, 220*ms)}
	for _, h := range w.nodes {
		h.full = true
	}
	w.atRefusal = func(partner *host) {
		owner := w.nodes[partner.id.Peer()]
		w.arb.slow = true
		w.after(w.even(ms, 10*ms), func() {
			owner.kill(false)
			w.after(w.even(s, 2*s), owner.boot)
		})
	}
	return w.until(2*s, 3*s, func() {
		w.net.slow, w.atRefusal, w.arb.slow = [2]int64{}, nil, false
		for _, h := range w.nodes {
			h.full = false
		}
	})
}

// cutFor cuts the link in both directions for a while.
func (w *world) cutFor(d int64) {
	w.net.cut = [2]bool{true, true}
	w.after(d, func() {
		w.net.uncut(0)
		w.net.uncut(1)
	})
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
