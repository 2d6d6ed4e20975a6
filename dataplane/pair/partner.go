package pair

import (
	"github.com/gemel-storage/gemel/dataplane/rangelock"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The partner's half of a mirrored write, in the order in which it happens: onMirror, applyInOrder
// (what overlaps waits for the messages before it are done), applyHot (the bits are durable),
// Applied (the answer).

// onMirror is the partner's half: apply, then answer. Nothing is applied unless this node takes
// part: as a member that agrees, or as a joiner whose metadata is installed (R3, R4).
func (m *Machine) onMirror(now int64, msg *Msg) {
	u := m.units[msg.LUN]
	member := m.phase == Paired && m.link.agreed && !m.excl.active && m.leave.why == ""
	if u == nil || !member && !m.resync.joined || msg.Seq < u.seq {
		m.Stats.StaleMessages++
		return
	}
	m.applying++
	m.owe(now, msg)
	if f := m.forwarded(msg); f != nil {
		f.seen = true
	}
	m.applyInOrder(now, u, msg)
	u.intents.dirty += msg.Len
}

// forwarded is the command of this node's front end that a mirrored write belongs to, nil if there
// is none (R11d).
func (m *Machine) forwarded(msg *Msg) *Op {
	if msg.Type != MsgMirror || msg.Front != m.cfg.Incarnation.Nonce || msg.FrontN == 0 {
		return nil
	}
	if f := m.ops[msg.FrontN]; f != nil && f.stage == stForward {
		return f
	}
	return nil
}

// applyInOrder begins applications that overlap in the order they came, one after the other, also
// when the runtime works on several at once: a frame that is sent twice must not land after a
// younger write.
func (m *Machine) applyInOrder(now int64, u *unit, msg *Msg) {
	msg.unit, msg.turn = u, rangelock.Request{Shared: msg.looks(), Granted: m.due.applyGranted, Of: msg}
	msg.turn.Off, msg.turn.End = m.wide(mirrorSpan(msg))
	if u.applies.Acquire(&msg.turn) {
		m.applyHot(now, msg)
	} else if !msg.looks() {
		m.hotMsg(now, u, msg) // the bits need not wait for their turn
	}
}

func mirrorSpan(msg *Msg) (off, end int64) {
	if msg.Kind != scsi.OpUnmap {
		return msg.Off, msg.Off + msg.Len
	}
	rs, err := msg.DecodeRanges()
	if err != nil {
		return 0, 1 << 62
	}
	off = 1 << 62
	for _, r := range rs {
		off, end = min(off, r.Off), max(end, r.Off+r.Len)
	}
	return min(off, end), end
}

// applyHot applies what the peer sent once its regions are hot.
func (m *Machine) applyHot(now int64, msg *Msg) {
	if msg.Epoch < m.rec.Epoch {
		m.Stats.Cancelled++
		msg.owed.drop()
		msg.unit.applies.Release(&msg.turn)
		m.applyEnded(now)
		return
	}
	switch msg.Type {
	case MsgFetch:
		m.act(Action{Kind: ActFetch, Msg: msg})
		return
	case MsgCopySum:
		m.act(Action{Kind: ActCompareSum, Msg: msg})
		return
	}
	if m.hotMsg(now, msg.unit, msg) {
		m.act(Action{Kind: ActApply, Msg: msg, Durable: msg.Flags&FlagFUA != 0})
		return
	}
	msg.unit.intents.waits = append(msg.unit.intents.waits, intentWait{apply: msg})
}

// Applied reports store work for the peer: a mirrored write, copied data, a flush.
func (m *Machine) Applied(now int64, link uint64, msg *Msg, res scsi.Result) {
	msg.owed.drop()
	id := msg.ID
	if msg == m.probing.msg {
		id, m.probing = m.probing.id, peerProbe{}
	}
	if u := m.units[msg.LUN]; u != nil {
		m.selfDone(now, u)
	}
	if res == scsi.WriteError || res == scsi.Failed {
		// First of all: nothing is answered any more from a store that has failed (R12).
		m.StoreFailed(now, "a mirrored or copied write")
	}
	m.waited(now, msg)
	if f := m.forwarded(msg); f != nil {
		// A repair takes the write back: the owner found no space for it. What it puts here is what
		// a refused write has left there.
		if repair := msg.Flags&FlagRepair != 0; res == scsi.OK {
			f.peerOK = !repair
			f.touched = f.touched || repair
		} else {
			f.touched = true
		}
	}
	if msg.Type != MsgFlush {
		m.applyEnded(now)
	}
	if msg.Type == MsgFlushAll && res == scsi.OK {
		if link == m.link.number && m.link.up {
			m.joinFlushed(now, msg)
		}
	} else if link == m.link.number && m.link.up {
		ack := m.cfg.Msg()
		ack.ID, ack.Result = id, res
		switch msg.Type {
		case MsgMirror:
			ack.Type = MsgMirrorAck
		case MsgFlush:
			ack.Type = MsgFlushAck
		case MsgCopyData:
			ack.Type = MsgCopyAck
		case MsgFlushAll:
			ack.Type, ack.Aux = MsgFlushAllAck, int64(m.log.index)
		}
		m.send(ack)
	}
	m.settle(now)
}

// waited gives back the range that work for the peer had.
func (m *Machine) waited(now int64, msg *Msg) {
	if u := msg.unit; u != nil {
		u.applies.Release(&msg.turn)
		m.handedOver(now, u)
	}
}

// applyEnded counts store work for the peer that is over; with the last one of an older epoch the
// barrier opens (R4).
func (m *Machine) applyEnded(now int64) {
	m.applying--
	if m.straggle == 0 {
		return
	}
	if m.straggle--; m.straggle == 0 {
		if m.phase == Alone {
			m.exposeFlush()
		}
		m.redoAll(now)
		m.pump(now)
	}
}

// lags reports whether writes that the former owner of u mirrored here are still being applied,
// frames that came twice included: until they have ended the new owner, this node, executes
// nothing, or a straggler would land on a younger write (R4, R10).
func (m *Machine) lags(u *unit) bool {
	return m.phase == Paired && u.owner == m.cfg.Self && u.applies.Len() > 0
}

func (m *Machine) handedOver(now int64, u *unit) {
	if u.applies.Len() > 0 || m.phase != Paired || u.owner != m.cfg.Self || !m.Serving(now) {
		return
	}
	for o := range u.ops.all() {
		if o.stage == stHeld {
			m.dispatch(now, o)
		}
	}
}
