package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A cut through two LUNs (docs/decisions/0070): what a coordinator asks of the pair, what both
// nodes hold for it, and what the log says of its attempts. Coordinators come one after the other,
// overtake each other, and end anywhere.

// groupState is what the log has of the group.
type groupState struct {
	Attempt uint64 `json:"attempt"` // the highest one
	Void    bool   `json:"void,omitempty"`
}

// groupStep is what an entry does to the group.
type groupStep int

const (
	groupBegin groupStep = iota + 1
	groupCut
	groupVoid
)

// member is a LUN of the group, and its snapshot.
type member struct {
	LUN  int    `json:"lun"`
	Slot int    `json:"slot"`
	Born uint64 `json:"born"`
	Seq  uint64 `json:"seq"` // of the ownership, when it was held
}

// cutHold is what a node holds for an attempt.
type cutHold struct {
	attempt, token uint64
	q              uint64 // 0: nothing of this node is in it
	fixed          bool
	members        []member // at the node that was asked
}

const (
	cutLimit  = 800 * ms // of a hold
	cutUntold = 500 * ms // after which a node whose hold is fixed asks the log
)

// applyGroup is an entry of the group.
func (h *host) applyGroup(e *entry, joining bool) scsi.Result {
	d, g := h.disk, &h.disk.meta.Group
	switch e.Group {
	case groupBegin:
		if e.Attempt <= g.Attempt {
			return scsi.Busy
		}
		*g = groupState{Attempt: e.Attempt}
	case groupVoid:
		g.Void = g.Void || g.Attempt == e.Attempt
	case groupCut:
		if g.Attempt != e.Attempt || g.Void {
			return scsi.Busy
		}
		for _, m := range e.Members {
			if s := d.meta.Snaps[m.Slot]; s.Stage != stagePrepared || s.Born != m.Born || d.meta.Units[m.LUN].Seq != m.Seq || d.marking(m.LUN) {
				return scsi.Busy
			}
		}
		for _, m := range e.Members {
			d.meta.Snaps[m.Slot].Stage = stageMarked
			h.marks(m.Slot, joining)
		}
		h.w.cuts = append(h.w.cuts, e.Members)
	}
	return scsi.OK
}

// holdCut holds members of this node.
func (h *host) holdCut(x *cutHold, luns []pair.LUNID, done func(ok bool)) {
	register := func() {
		if old := h.cut; old != nil && old.fixed {
			h.m.Release(h.clock(), x.q)
			done(false)
			return
		} else if old != nil {
			h.m.Release(h.clock(), old.q)
		}
		h.cut = x
		done(true)
	}
	if len(luns) == 0 {
		register()
		return
	}
	h.nextID++
	x.q = h.nextID
	h.quiets[x.q] = func(res scsi.Result) {
		if res != scsi.OK {
			done(false)
			return
		}
		register()
	}
	h.m.Hold(h.clock(), x.q, luns, cutLimit)
}

// fixCut has a hold stand until its cut is decided. It must not have ended.
func (h *host) fixCut(token uint64) bool {
	x := h.cut
	if x == nil || x.token != token {
		return false
	}
	x.fixed = true
	if x.q != 0 && !h.m.Fix(h.clock(), x.q) {
		h.decideCut(token)
		return false
	}
	return true
}

// unholdCut takes back a hold that was refused elsewhere.
func (h *host) unholdCut(token uint64) {
	if h.cut != nil && h.cut.token == token && !h.cut.fixed {
		h.decideCut(token)
	}
}

// decideCut ends a hold whose cut has an outcome.
func (h *host) decideCut(token uint64) {
	if x := h.cut; x != nil && x.token == token {
		h.cut = nil
		h.m.Release(h.clock(), x.q)
	}
}

// endCut ends the hold of an attempt below one that the log has.
func (h *host) endCut(attempt uint64) {
	if x := h.cut; x != nil && x.attempt < attempt {
		h.decideCut(x.token)
	}
}

// beginsCut is the part of the node that was not asked: it fixes its hold, begins with every
// member, and waits for the word of the asked one, or asks the log.
func (h *host) beginsCut(token uint64, members []member) bool {
	if !h.fixCut(token) {
		return false
	}
	h.awaitsWord(h.cut)
	for _, m := range members {
		if !h.begins(m.Slot, m.Born) {
			return false
		}
	}
	return h.fixCut(token)
}

func (h *host) awaitsWord(x *cutHold) {
	life := h.life
	h.w.after(cutUntold, func() {
		h.when(life, func() {
			if h.cut != x {
				return
			}
			h.moving++
			h.propose(entry{Group: groupVoid, Attempt: x.attempt}, func(res scsi.Result) {
				if h.moving--; res == scsi.OK {
					h.w.mark(markCutVoid)
					h.decideCut(x.token)
				} else if h.cut == x {
					h.awaitsWord(x)
				}
			})
		})
	})
}

// takeCut marks all members, at the node that was asked.
func (h *host) takeCut(token uint64, done func(ok bool)) {
	x := h.cut
	if x == nil || x.members == nil || !h.fixCut(token) {
		done(false)
		return
	}
	over := func() {
		h.decideCut(x.token)
		h.tellsPeer(func(peer *host) { peer.decideCut(x.token) })
	}
	begun := func(ok bool) {
		for _, m := range x.members {
			ok = ok && h.begins(m.Slot, m.Born)
		}
		if !ok || x.q != 0 && !h.m.Fix(h.clock(), x.q) {
			over()
			done(false)
			return
		}
		h.moving++
		h.propose(entry{Group: groupCut, Attempt: x.attempt, Members: x.members}, func(res scsi.Result) {
			h.moving--
			done(res == scsi.OK)
		})
		over()
	}
	if v := h.m.View(h.clock()); !v.Record.Both() {
		begun(true)
		return
	}
	h.asksOnce(func(peer *host) any { return peer.beginsCut(x.token, x.members) }, begun)
}

// asksOnce has the peer do something; it is done for the second time with false if no answer comes.
func (h *host) asksOnce(do func(peer *host) any, done func(ok bool)) {
	over := false
	end := func(ok bool) {
		if !over {
			over = true
			done(ok)
		}
	}
	h.doesAtPeer(do, func(answer any) { end(answer.(bool)) })
	life := h.life
	h.w.after(beginLost, func() { h.when(life, func() { end(false) }) })
}

// tellsPeer tells the peer something that may be lost.
func (h *host) tellsPeer(what func(peer *host)) {
	h.doesAtPeer(func(peer *host) any { what(peer); return true }, func(any) {})
}

// judgeCut compares the members of a cut, once all are committed, with what hosts saw: an instant
// must exist at which all LUNs could have held what is in them.
func (h *host) judgeCut(born uint64) {
	w, d := h.w, h.disk
	for _, members := range w.cuts {
		var all []shown
		held, mine := forever, false
		for _, m := range members {
			s := d.meta.Snaps[m.Slot]
			mine = mine || m.Born == born
			if s.Born != m.Born || s.Stage != stageReady || !h.judgeable(m.Slot) || w.history.lostAny(m.LUN) {
				mine = false
				break
			}
			var values []uint64
			for _, p := range d.luns[w.shape.luns+m.Slot] {
				values = append(values, p.cache)
			}
			all = append(all, shown{m.LUN, values})
			held = min(held, w.instants[m.Born].from) // all members are held since before that
		}
		if !mine {
			continue
		}
		w.mark(markCut)
		if what := w.instantOf(all, instant{held, held}); what != "" {
			w.fail("R14: the cut through LUNs, as node %v has it, begun at %.3fms: %s", h.id, float64(held)/1e6, what)
		}
	}
}
