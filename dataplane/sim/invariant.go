package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// What holds at every step, whatever hosts see. Each claim names its rule.

// observe reads a node's standing after its machine was given something, and judges it.
func (h *host) observe() {
	w := h.w
	v := h.m.View(h.clock())
	if v.Phase != h.phase {
		w.trace("%v: %v at epoch %d: %s", h.id, v.Phase, v.Record.Epoch, v.Reason)
	}
	if h.resyncing && !v.Resync.Active && v.Phase == pair.Alone {
		w.mark(markResyncStopped)
	}
	if v.Phase != h.phase || v.Excluding != h.excluding {
		w.unflip()
	}
	h.lookAtScrub(&v)
	h.lookAtSlowness()
	h.sick = h.sick || v.Leaving // it steps down, and serves again only in another life
	if v.Over != "" {
		h.over(v.Over)
	}
	if h.phase == pair.Alone && v.Phase == pair.Outside && v.Record.Generation != h.generation {
		w.fail("R2: node %v was alone and joins generation %d in the same life: what it has acknowledged goes without a word", h.id, v.Record.Generation)
	}
	if h.phase != pair.Alone || v.Phase != pair.Alone { // a younger record that is being made durable is not acted on yet
		h.generation = v.Record.Generation
	}
	h.phase, h.excluding, h.resyncing = v.Phase, v.Excluding, v.Resync.Active
	if v.Record.Epoch < h.epoch && v.Phase != pair.Fenced {
		w.fail("R2: node %v goes back from epoch %d to %d", h.id, h.epoch, v.Record.Epoch)
	}
	h.epoch = max(h.epoch, v.Record.Epoch)
	if v.Serving {
		if h.disk.epoch < v.Record.Epoch {
			w.fail("R2: node %v serves under epoch %d, durable is %d", h.id, v.Record.Epoch, h.disk.epoch)
		}
		if h.failed {
			w.fail("R12: node %v serves after its store failed", h.id)
		}
	}
	w.check()
	w.vouches()
}

// check: never two nodes that may serve one LUN (R1, R3, R10).
func (w *world) check() {
	w.checkGhosts()
	a, b := w.nodes[0], w.nodes[1]
	if a.m == nil || b.m == nil {
		return
	}
	if a.frozenNow() || b.frozenNow() || !a.m.Serving(a.clock()) || !b.m.Serving(b.clock()) {
		// A frozen node executes nothing; what it does when it thaws is judged then.
		return
	}
	if a.phase == pair.Alone || b.phase == pair.Alone {
		if w.partedNow() {
			return
		}
		older := a
		if b.epoch < a.epoch {
			older = b
		}
		if older.phase == pair.Alone && older.unanswered != 0 && a.epoch != b.epoch {
			// It has asked, and was not answered: for that there is no bound (R2). What hosts see
			// then is nothing that one disk could give.
			w.mark(markUnansweredLone)
			w.parted, w.truth.off = w.now, true
			return
		}
		w.fail("R3: both nodes serve: a is %v at epoch %d, b is %v at epoch %d", a.phase, a.epoch, b.phase, b.epoch)
		return
	}
	for _, l := range w.luns {
		oa, _ := a.m.Owner(l)
		ob, _ := b.m.Owner(l)
		if oa == pair.A && ob == pair.B && !a.m.Quiesced(l) && !b.m.Quiesced(l) {
			w.fail("R10: LUN %d has two owners at epochs %d and %d", l[0], a.epoch, b.epoch)
		}
	}
}

// replied judges a status as it leaves a machine.
func (h *host) replied(a *attempt, served bool) {
	w := h.w
	res := a.op.Cmd.Result
	if res == scsi.NoSpace {
		w.alike(h, a)
	}
	if res == scsi.ReadError && w.res.Marks[markReadError] == 0 && !h.disk.misfit[a.l.lun] && !w.mayBeLost(a.l) {
		w.fail("R15: node %v answers %s with a read error, and one good copy is there", h.id, a.l)
	}
	if res != scsi.OK && res != scsi.Miscompare {
		return
	}
	if !served && !h.m.Serving(h.clock()) {
		w.fail("R1: node %v sends status %d of %s and may not serve", h.id, res, a.l)
	}
	if res == scsi.OK {
		w.acknowledged(h, a)
	}
}

// starts judges the moment at which a host's command begins to take effect (R11b).
func (h *host) starts(o *pair.Op) {
	a := h.attempts[o]
	if a == nil || a.started {
		return
	}
	a.started = true
	if age := o.StartedAt - o.Cmd.Arrived; o.Cmd.Kind.Writes() && age > s+10*ms {
		h.w.fail("R11b: node %v starts %s %d ms after it arrived", h.id, a.l, age/ms)
	}
}

// judge checks a transition of the record, at the moment the arbiter takes it (R2), and that every
// node it names holds what was acknowledged.
func (a *arbiterSim) judge(next *pair.Record, asked int64) {
	w, old := a.w, &a.rec
	if a.forces(next) {
		return
	}
	if a.lost {
		w.fail("R2: a node acts on a record that was lost: it writes %+v over %+v", *next, *old)
		return
	}
	if !a.exists {
		if next.Epoch != 1 || !next.Both() {
			w.fail("R2: the first record is %+v", *next)
		}
		return
	}
	if next.Epoch == old.Epoch {
		if !next.Equal(old) {
			w.fail("R2: epoch %d gets another content: %+v after %+v", next.Epoch, *next, *old)
		}
		return
	}
	if next.Generation != old.Generation {
		w.fail("R2: epoch %d begins generation %d without a force", next.Epoch, next.Generation)
		return
	}
	if next.Epoch != old.Epoch+1 {
		w.fail("R2: the record goes from epoch %d to %d", old.Epoch, next.Epoch)
		return
	}
	first := next.Members[0]
	was := old.Member(first.Node)
	switch {
	case a.yields(next):
		w.mark(markYield)
		return
	case was == nil || was.Store != first.Store:
		w.fail("R2: epoch %d names node %v with store %s, which no member was: before %+v", next.Epoch, first.Node, first.Store, *old)
	case next.Both() && (old.Both() || *was != first):
		w.fail("R2: epoch %d readmits no node: %+v after %+v", next.Epoch, *next, *old)
	}
	if w.res.Err != nil {
		return
	}
	for _, m := range next.Members {
		h := w.nodes[m.Node]
		if m.Node != first.Node && (h.m == nil || h.disk.previous != m.Incarnation) {
			continue // that life of the joiner is over: who is named is no process, and is excluded again
		}
		switch {
		case h.disk.id != m.Store:
			if !next.Both() {
				w.fail("R6: epoch %d names store %s of node %v, whose disk is %s", next.Epoch, m.Store, m.Node, h.disk.id)
			}
			continue
		case h.failed || h.harmed >= asked || next.Both() && m != first && h.flushedAll > 0 && h.harmed >= h.flushedAll:
			continue // it failed after it had asked, or had said that it has everything; its next life is judged
		case h.disk.life.Lost:
			a.gaveUp(next, h)
			continue // hosts will get MEDIUM ERROR before it serves (R8)
		case h.disk.misfits() != "" && (old.Both() || next.Both()):
			w.fail("R12: epoch %d names node %v: %s", next.Epoch, m.Node, h.disk.misfits())
		case h.disk.untrusted:
			w.fail("R12: epoch %d names node %v, whose store is not trusted", next.Epoch, m.Node)
		}
		if what := w.lacks(h, func(p *page) uint64 { return p.cache }); what != "" {
			w.fail("R2: epoch %d names node %v: %s", next.Epoch, m.Node, what)
		}
		if next.Both() || m.Incarnation == was.Incarnation {
			continue
		}
		// It claims the record from outside: until now the other copy counted as well.
		if what := w.lacks(h, func(p *page) uint64 { return p.stable }); what != "" {
			w.fail("R8: epoch %d names node %v, which has not flushed: %s", next.Epoch, m.Node, what)
		}
	}
	if other := w.nodes[first.Node.Peer()]; !next.Both() && other.m != nil && other.stands == 0 && other.m.Serving(other.clock()) && !w.partedNow() &&
		!(other.phase == pair.Alone && other.epoch < old.Epoch) { // the node that is named waits until it has looked at the record

		w.fail("R3: epoch %d excludes node %v, which serves under epoch %d", next.Epoch, other.id, other.epoch)
	}
	if next.Both() {
		w.mark(markReadmit)
		w.joined(w.nodes[next.Members[1].Node])
	} else if old.Both() {
		w.mark(markExclude)
	} else {
		w.mark(markRenew)
	}
}

// gaveUp judges a claim after which hosts get MEDIUM ERROR after a loss: the peer, which was a
// member as well when the claimant last acted on a record, must not have kept what is lost (R2b).
func (a *arbiterSim) gaveUp(next *pair.Record, h *host) {
	w, before := a.w, &a.rec
	if acted := h.disk.acted; !before.Both() && (acted == nil || acted.Epoch < before.Epoch) && len(a.past) > 1 {
		before = &a.past[len(a.past)-2]
	}
	peer := w.nodes[h.id.Peer()]
	m := before.Member(peer.id)
	if h.disk.life.LostAll { // an administrator has decided
		return
	}
	if next.Both() || m == nil || m.Store != peer.disk.id || m.Incarnation.Boot != peer.bootID() || peer.disk.suspect() || peer.harmed >= 0 {
		return
	}
	cache := func(p *page) uint64 { return p.cache }
	if what := w.lacks(h, cache); what != "" && w.lacks(peer, cache) == "" {
		w.fail("R2b: epoch %d names node %v, and node %v has kept what is lost: %s", next.Epoch, h.id, peer.id, what)
	}
}

// yields: a lone member that never acted on its record gives it to the peer, which was a member
// before and has kept all that was acknowledged (R2b).
func (a *arbiterSim) yields(next *pair.Record) bool {
	w := a.w
	if a.rec.Both() || next.Both() || a.rec.Chair() == next.Chair() || len(a.past) < 2 {
		return false
	}
	before, to := &a.past[len(a.past)-2], w.nodes[next.Chair()]
	m := before.Member(to.id)
	if m == nil || m.Store != next.Members[0].Store || m.Incarnation.Boot != next.Members[0].Incarnation.Boot {
		return false
	}
	if acted := w.nodes[a.rec.Chair()].disk.acted; acted != nil && acted.Epoch >= a.rec.Epoch {
		w.fail("R2b: node %v gives away a record that it has acted on", a.rec.Chair())
	}
	if what := w.lacks(to, func(p *page) uint64 { return p.cache }); what != "" && to.harmed < 0 {
		w.fail("R2b: node %v is given the record: %s", to.id, what)
	}
	return true
}

// joined: what was acknowledged before the joiner flushed everything is durable there when it is
// readmitted (R7).
func (w *world) joined(h *host) {
	since := h.flushedAll
	if since == 0 {
		since = h.installed // it was never asked to flush
	}
	if h.failed || h.harmed >= since {
		return
	}
	for slot, s := range h.disk.meta.Snaps {
		if s.Stage == stageReady && h.disk.copying[slot] {
			w.fail("R14: node %v is readmitted, and snapshot %d is not complete there", h.id, slot+1)
		}
	}
	w.truth.each(func(l, b int, f *fact) {
		if v := h.disk.luns[l][b].stable; f.since < since && v != f.value && !w.gone(h, l, b) {
			w.fail("R7: node %v is readmitted with LUN %d block %d unflushed: durable is %d, not %d", h.id, l+1, b, v, f.value)
		}
	})
}
