package pair

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/rangelock"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The owner's half of a mirrored write, then the partner's.

func (m *Machine) sendMirror(o *Op) { m.send(m.mirrorMsg(o)) }

func (m *Machine) mirrorMsg(o *Op) *Msg {
	s := o.S
	msg := &Msg{Type: MsgMirror, Kind: s.Kind, Seq: o.seq, ID: o.id, LUN: o.LUN, Off: s.Off, Len: s.Len,
		Front: o.front, FrontN: o.frontN, Data: s.Data, Op: o}
	if s.Kind == scsi.OpCompareWrite {
		msg.Kind = scsi.OpWrite // compared at the owner, under the lock that is held
	}
	if s.Kind == scsi.OpUnmap {
		msg.Meta, msg.Data = encodeRanges(s.Ranges), nil
	}
	if o.stage == stRepair {
		msg.Kind, msg.Data, msg.Meta, msg.Flags = scsi.OpWrite, o.Buf, nil, FlagRepair
		msg.Off, msg.Len = o.Range()
		if len(o.Bad) > 0 {
			msg.Meta = encodeRanges(o.Bad) // the peer's own are left as they are
		}
	}
	if s.FUA || m.resync.durable {
		msg.Flags |= FlagFUA // R1c, R8
	}
	if s.Unmap {
		msg.Flags |= FlagUnmap
	}
	m.Stats.Mirrored++
	return msg
}

func (m *Machine) onMirrorAck(now int64, msg *Msg) {
	o := m.ops[msg.ID]
	if o == nil {
		m.Stats.StaleMessages++
		return
	}
	m.peerDone(now, o)
	switch {
	case o.stage == stRepair:
		if msg.Result != scsi.OK {
			// It stays locked and among the unanswered: the peer's exclusion ends it, or it is sent again.
			m.peerRefuses(now, "a range could not be re-copied after a refused write")
			return
		}
		delete(m.ops, o.id)
		m.answer(now, o)
	case o.stage != stMirror:
		m.Stats.StaleMessages++
	case msg.Result == scsi.OK:
		delete(m.ops, o.id)
		m.afterMirror(now, o)
	case msg.Result == scsi.NoSpace:
		m.Stats.NoSpace++
		o.result = scsi.NoSpace
		m.repair(now, o)
	case m.phase == Alone:
		m.resyncStop(now, "the joiner's store refused a write")
	default:
		// The partner's disk failed: it steps down by itself; make sure of it. The write keeps its lock until then.
		m.excludeFirm(now, "the peer's store refused a write")
	}
}

// peerRefuses gives up on a peer that cannot hold a range (R5).
func (m *Machine) peerRefuses(now int64, why string) {
	if m.phase == Alone {
		m.resyncStop(now, why)
		return
	}
	m.excludeFirm(now, why)
}

// afterMirror applies a write here, once it is on the peer or there is no peer.
func (m *Machine) afterMirror(now int64, o *Op) {
	if m.gone(o) {
		m.finish(now, o, scsi.Unavailable)
		return
	}
	m.storeWrite(now, o)
}

// repair makes both copies equal again after one store refused a write for lack of space: the range as it is
// here is re-copied to the peer, under the same lock (R5, R13). Zero blocks become holes there, so that the
// repair itself needs no space that was not there before.
func (m *Machine) repair(now int64, o *Op) {
	delete(m.ops, o.id)
	if !m.mirrors() {
		m.answer(now, o)
		return
	}
	m.Stats.Repaired++
	m.nextID++ // the write may have been sent twice: the answer to its second frame is none to the repair
	o.id = m.nextID
	o.stage, o.since = stRepair, now
	m.storeOps++
	m.act(Action{Kind: ActRepairRead, Op: o})
}

// Range tells the runtime what a repair or a copy reads: what is locked, as far as the LUN goes.
func (o *Op) Range() (off, length int64) {
	if o.copy {
		return o.S.Off, o.S.Len
	}
	end := o.lock.End
	if o.unit.size > 0 {
		end = max(o.lock.Off, min(end, o.unit.size))
	}
	return o.lock.Off, end - o.lock.Off
}

func (m *Machine) repairRead(now int64, o *Op, res scsi.Result) {
	switch {
	case m.gone(o):
		m.finish(now, o, scsi.Unavailable)
	case res != scsi.OK || len(o.Bad) > 0 && !m.peer.Sums:
		m.result(now, o, scsi.WriteError)
	case !m.mirrors():
		m.answer(now, o)
	default:
		m.ops[o.id] = o
		m.sendMirror(o)
	}
}

// repairAlone ends a repair whose peer is gone.
func (m *Machine) repairAlone(now int64, o *Op) {
	if m.ops[o.id] != nil {
		delete(m.ops, o.id)
		m.answer(now, o)
	}
}

func (m *Machine) onFlushAck(now int64, msg *Msg) {
	if m.peerProbed(now, msg) {
		return
	}
	o := m.ops[msg.ID]
	if o == nil || o.stage != stBoth {
		m.Stats.StaleMessages++
		return
	}
	o.peerTook = max(now-o.since, 1) // not peerDone: it says nothing of mirrored writes, of which one may be lost
	delete(m.ops, o.id)
	if msg.Result != scsi.OK {
		m.peerRefuses(now, "the peer's flush failed")
		if m.phase != Alone {
			m.ops[o.id] = o // stays until the peer is out
			return
		}
	}
	o.peerOK = true
	m.flushPart(now, o)
}

// flushPart ends a flush when both halves are done (R8).
func (m *Machine) flushPart(now int64, o *Op) {
	if !o.selfOK || !o.peerOK {
		return
	}
	m.result(now, o, o.result)
}

// relink sends again what the old link left unanswered.
func (m *Machine) relink(now int64) {
	for o := range m.eachOp() {
		switch {
		case o.stage == stMirror, o.stage == stRepair && m.ops[o.id] != nil:
			m.sendAgain(m.mirrorMsg(o))
		case o.stage == stBoth && !o.peerOK:
			m.send(o.flushMsg())
		case o.stage == stHealAsk:
			m.healSend(o)
		case o.stage == stForward:
			m.sendAgain(m.forwardMsg(now, o))
			if o.aborted {
				m.send(&Msg{Type: MsgForwardAbort, ID: o.id, Front: m.cfg.Incarnation.Nonce})
			}
		}
	}
	m.pathResend()
}

// sendAgain sends what was sent before, with data of its own: the answer to one frame ends the op and frees its buffer
// while another of its frames may still wait for the socket. A frame that then carried the next command's bytes would
// be applied in place of the write that was acknowledged.
func (m *Machine) sendAgain(msg *Msg) {
	msg.Data = slices.Clone(msg.Data)
	m.send(msg)
}

// onMirror is the partner's half: apply, then answer. Nothing is applied unless this node takes part: as a member
// that agrees, or as a joiner whose metadata is installed (R3, R4).
func (m *Machine) onMirror(now int64, msg *Msg) {
	u := m.units[msg.LUN]
	member := m.phase == Paired && m.agreed && !m.excl.active && m.leaving == ""
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

// applyInOrder begins applications that overlap in the order they came, one after the other, also when the runtime works
// on several at once: a frame that is sent twice must not land after a younger write.
func (m *Machine) applyInOrder(now int64, u *unit, msg *Msg) {
	w := &applyWait{msg: msg}
	w.lock.Off, w.lock.End = m.wide(mirrorSpan(msg))
	w.lock.Shared = msg.looks()
	w.lock.Granted = func(*rangelock.Request) { m.applyDue = append(m.applyDue, w) }
	msg.wait = w
	w.unit = u
	if u.applies.Acquire(&w.lock) {
		m.applyHot(now, w)
	} else if !msg.looks() {
		m.hotMsg(now, u, msg) // the bits need not wait for their turn
	}
}

// forwarded is the command of this node's front end that a mirrored write belongs to, nil if there is none (R11d).
func (m *Machine) forwarded(msg *Msg) *Op {
	if msg.Type != MsgMirror || msg.Front != m.cfg.Incarnation.Nonce || msg.FrontN == 0 {
		return nil
	}
	if f := m.ops[msg.FrontN]; f != nil && f.stage == stForward {
		return f
	}
	return nil
}

// applyWait is a mirrored write waiting for an older one on the same range.
type applyWait struct {
	lock rangelock.Request
	msg  *Msg
	unit *unit
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

// onPeerFlush makes a LUN durable for the owner.
func (m *Machine) onPeerFlush(now int64, msg *Msg) {
	if !(m.phase == Paired && m.agreed && !m.excl.active && m.leaving == "") && !m.resync.joined {
		m.Stats.StaleMessages++
		return
	}
	if !m.peer.Sums && msg.Flags&FlagProbe == 0 {
		msg.Flags |= FlagSums // a release before, or one without checksums, does not say when bits are about to be taken back
	}
	// Not counted in applying: nothing lands by a flush, and a node that becomes alone need not wait for one (R4).
	m.owe(now, msg)
	m.act(Action{Kind: ActPeerFlush, Msg: msg})
}

// Applied reports store work for the peer: a mirrored write, copied data, a flush.
func (m *Machine) Applied(now int64, link uint64, msg *Msg, res scsi.Result) {
	msg.owed.drop()
	if u := m.units[msg.LUN]; u != nil {
		m.selfDone(now, u)
	}
	if res == scsi.WriteError || res == scsi.Failed {
		// First of all: nothing is answered any more from a store that has failed (R12).
		m.StoreFailed(now, "a mirrored or copied write")
	}
	m.waited(now, msg)
	if f := m.forwarded(msg); f != nil {
		// A repair takes the write back: the owner found no space for it. What it puts here is what a refused write has left there.
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
		if link == m.linkN && m.linked {
			m.joinFlushed(now, msg)
		}
	} else if link == m.linkN && m.linked {
		ack := &Msg{ID: msg.ID, Result: res}
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
	if w := msg.wait; w != nil {
		w.unit.applies.Release(&w.lock)
		m.handedOver(now, w.unit)
	}
}

// lags reports whether writes that the former owner of u mirrored here are still being applied, frames that came twice
// included: until they have ended the new owner, this node, executes nothing, or a straggler would land on a younger write (R4,
// R10).
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

// applyEnded counts store work for the peer that is over; with the last one of an older epoch the barrier opens (R4).
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
