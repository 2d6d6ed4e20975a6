package pair

import (
	"iter"
	"maps"
	"slices"
)

// eachOp walks all ops, those on snapshots last; the one at hand may be removed.
func (m *Machine) eachOp() iter.Seq[*Op] {
	return func(yield func(*Op) bool) {
		for _, u := range m.sortedUnits() {
			for o := range u.ops.all() {
				if !yield(o) {
					return
				}
			}
		}
		m.snaps.ops.all()(yield)
	}
}

// sorted lists the keys of a table in order: a run can be replayed only if nothing depends on map
// order.
func sorted[V any](t map[uint64]V) []uint64 {
	if len(t) == 0 {
		return nil // as nearly always, and it is looked at in each tick
	}
	return slices.Sorted(maps.Keys(t))
}

// internal reports an op that no host sent.
func (o *Op) internal() bool { return o.copy || o.ckpt }

// pump moves everything that was waiting for a decision.
func (m *Machine) pump(now int64) {
	if !m.Serving(now) && m.phase != Outside && m.phase != Fenced {
		return
	}
	for _, u := range m.sortedUnits() {
		m.quiet(now, u)
	}
	for o := range m.eachOp() {
		switch o.stage {
		case stHeld:
			m.dispatch(now, o)
		case stAnswer:
			m.answer(now, o)
		}
	}
	m.logNext(now)
	m.copyNext(now)
}

// relink sends again what the old link left unanswered.
func (m *Machine) relink(now int64) {
	for o := range m.eachOp() {
		switch {
		case o.stage == stBoth && !o.peerOK:
			m.send(o.flushMsg())
		case o.stage == stForward:
			m.sendAgain(m.forwardMsg(now, o))
			if o.aborted {
				m.send(&Msg{Type: MsgForwardAbort, ID: o.id, Front: m.cfg.Incarnation.Nonce})
			}
		default:
			m.askAgain(o)
		}
	}
	m.pathResend()
}

// askAgain sends again what an owner has asked of the peer for a command.
func (m *Machine) askAgain(o *Op) {
	switch {
	case o.stage == stMirror, o.stage == stRepair && m.ops[o.id] != nil:
		m.sendAgain(m.mirrorMsg(o))
	case o.stage == stHealAsk:
		m.healSend(o)
	}
}

// ownedFurther is called when an entry has named an owner of a unit. A lone member executes the
// commands of every unit, whatever the metadata say, so an entry may come in the midst of them: it
// takes a unit over that was given to the joiner. The joiner may have known the entry first, and
// has passed over what this node asked for under the ownership before, as an older owner's (R10).
func (m *Machine) ownedFurther(u *unit) {
	if m.phase != Alone {
		return
	}
	for o := range u.ops.all() {
		if o.began && !o.copy {
			o.seq = u.seq
			m.askAgain(o)
		}
	}
}

// dropFrames drops the link before ops end whose frames may be queued: they refer to the ops'
// buffers. The peer may not know of this node's standing yet, and would apply what is in the
// buffers by then (R4).
func (m *Machine) dropFrames(why string) {
	if m.link.up && len(m.ops) > 0 {
		m.act(Action{Kind: ActDropLink, Text: why})
	}
}

// sendAgain sends what was sent before, with data of its own: the answer to one frame ends the op
// and frees its buffer while another of its frames may still wait for the socket. A frame that then
// carried the next command's bytes would be applied in place of the write that was acknowledged.
func (m *Machine) sendAgain(msg *Msg) {
	msg.Data = slices.Clone(msg.Data)
	m.send(msg)
}
