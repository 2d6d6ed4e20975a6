package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The coordinator of a cut: each step waits for the one before, and whatever fails ends the
// attempt. It is no part of a node: it asks one, and a node that dies answers nothing.

const cutFaultName = "cut through two LUNs"

// coordinator makes one attempt.
type coordinator struct {
	w       *world
	h       *host // which is asked
	life    int
	attempt uint64
	slots   [2]int
	born    [2]uint64
}

// cutFaults come on request only.
func (w *world) cutFaults() []fault {
	return []fault{{cutFaultName, func() bool {
		if w.shape.luns < 2 || !w.arb.exists {
			return false
		}
		begun := false
		for range 1 + w.rnd.IntN(3) { // they overtake each other
			w.after(w.between(0, 400*ms), func() { w.coordinates() })
			begun = true
		}
		if w.chance(0.7) {
			w.after(w.between(0, 600*ms), w.cutTrouble())
		}
		return begun
	}}}
}

// cutTrouble is what befalls the pair meanwhile.
func (w *world) cutTrouble() func() {
	h, d := w.any(), w.rnd.IntN(2)
	return []func(){
		func() { w.crash(h, false) },
		func() { w.transfer(w.rnd.IntN(2)) },
		func() { w.net.drop("reset") },
		func() { w.cutFor(w.even(ms, 900*ms)) },
		func() { h.freeze(w.between(50*ms, 2*s)) },
		func() { w.net.slow[d] = w.lag(); w.until(100*ms, 900*ms, func() { w.net.slow = [2]int64{} }) },
		func() { h.slow = w.lag(); w.until(100*ms, 900*ms, func() { h.slow = 0 }) },
	}[w.rnd.IntN(7)]
}

func (w *world) coordinates() {
	h := w.any()
	if h.m == nil || h.frozenNow() || !h.m.Serving(h.clock()) || h.disk.misfit[0] || h.disk.misfit[1] {
		return
	}
	w.attempts++
	c := &coordinator{w: w, h: h, life: h.life, attempt: w.attempts, slots: [2]int{0, 1}}
	if w.shape.luns == 2 && w.chance(0.5) {
		c.slots[0] = 2 // of the same LUN
	}
	c.ask(func() {
		h.moving++
		h.propose(entry{Group: groupBegin, Attempt: c.attempt}, func(res scsi.Result) {
			if h.moving--; res == scsi.OK {
				h.endCut(c.attempt)
				h.tellsPeer(func(peer *host) { peer.endCut(c.attempt) })
				c.then(func() { c.clears(0) })
			}
		})
	})
}

// ask has the node do something in the life in which it was asked first: another one knows nothing
// of the attempt, and answers nothing.
func (c *coordinator) ask(do func()) { c.h.when(c.life, do) }

// then is the next request, which takes its time.
func (c *coordinator) then(do func()) {
	d := c.w.between(20*us, 20*ms)
	if c.w.chance(0.1) {
		d = c.w.even(0, 1200*ms) // it is slow: a hold has lapsed, or another one has begun
	}
	c.w.after(d, func() { c.ask(do) })
}

// clears removes what the slots have, and makes new objects.
func (c *coordinator) clears(i int) {
	if i == len(c.slots) {
		c.then(c.holds)
		return
	}
	lun, slot := i, c.slots[i]
	prepare := func() {
		c.h.moving++
		c.h.proposeFor(entry{LUN: lun, Snap: slot + 1, Step: snapPrepare, Attempt: c.attempt}, func(res scsi.Result, born uint64) {
			if c.h.moving--; res == scsi.OK {
				c.born[i] = born
				c.then(func() { c.clears(i + 1) })
			}
		})
	}
	s := c.h.disk.meta.Snaps[slot]
	if s.Stage == stageNone {
		prepare()
		return
	}
	step := snapAbort
	if s.Stage == stageReady {
		step = snapDelete
	}
	c.h.snapStep(lun, slot, s.Born, step, func(res scsi.Result, _ uint64) {
		if res == scsi.OK {
			prepare()
		}
	})
}

// holds has each owner hold its members.
func (c *coordinator) holds() {
	h, w := c.h, c.w
	var own, other []pair.LUNID
	x := &cutHold{attempt: c.attempt, token: w.rnd.Uint64()}
	for i, slot := range c.slots {
		u := h.disk.meta.Units[i]
		x.members = append(x.members, member{i, slot, c.born[i], u.Seq})
		if u.Owner == h.id {
			own = append(own, w.luns[i])
		} else {
			other = append(other, w.luns[i])
		}
	}
	left, failed := 2, false
	answered := func(ok bool) {
		failed = failed || !ok
		if left--; left > 0 {
			return
		}
		if failed {
			h.unholdCut(x.token)
			h.tellsPeer(func(peer *host) { peer.unholdCut(x.token) })
			return
		}
		c.then(func() { c.cuts(x.token) })
		if w.chance(0.2) {
			c.then(c.holds) // a request that comes twice
		}
	}
	h.holdCut(x, own, answered)
	if len(other) == 0 {
		answered(true)
		return
	}
	h.holdsAtPeer(x, other, answered)
}

// holdsAtPeer has the other node hold its LUNs, and answers once.
func (h *host) holdsAtPeer(x *cutHold, luns []pair.LUNID, answered func(ok bool)) {
	over := false
	end := func(ok bool) {
		if !over {
			over = true
			answered(ok)
		}
	}
	life := h.life
	h.doesAtPeer(func(peer *host) any {
		its := &cutHold{attempt: x.attempt, token: x.token}
		peer.holdCut(its, luns, func(ok bool) {
			peer.tellsPeer(func(back *host) {
				if back.life == life {
					end(ok)
				}
			})
		})
		return true
	}, func(any) {})
	h.w.after(cutLimit, func() { h.when(life, func() { end(false) }) })
}

func (c *coordinator) cuts(token uint64) {
	c.h.takeCut(token, func(ok bool) {
		c.w.trace("coordinator at node %v: attempt %d, cut %v", c.h.id, c.attempt, ok)
	})
}
