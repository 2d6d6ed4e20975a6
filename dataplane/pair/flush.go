package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// A flush makes a LUN durable on both nodes (R8).

func (m *Machine) startFlush(now int64, o *Op) {
	o.stage, o.since = stBoth, now
	o.selfOK, o.peerOK = false, !m.mirrors()
	if !o.peerOK {
		m.ops[o.id] = o
		m.send(o.flushMsg())
	}
	m.storeOps++
	m.act(Action{Kind: ActFlush, Op: o, Durable: o.sums})
}

func (o *Op) flushMsg() *Msg {
	msg := &Msg{Type: MsgFlush, ID: o.id, LUN: o.LUN}
	if o.sums {
		msg.Flags = FlagSums
	}
	return msg
}

// peerProbe is a probe for the peer that is at the disk.
type peerProbe struct {
	msg  *Msg
	id   uint64 // to answer
	link uint64
}

// onPeerFlush makes a LUN durable for the owner.
func (m *Machine) onPeerFlush(now int64, msg *Msg) {
	if !(m.phase == Paired && m.link.agreed && !m.excl.active && m.leave.why == "") && !m.resync.joined {
		m.Stats.StaleMessages++
		return
	}
	if !m.link.peer.Sums && msg.Flags&FlagProbe == 0 {
		msg.Flags |= FlagSums // a release before, or one without checksums, does not say when bits are about to be taken back
	}
	if msg.Flags&FlagProbe != 0 {
		if m.probing.msg != nil && m.probing.link == m.link.number {
			m.probing.id = msg.ID // asked again while the disk is at the first: one answer is for both
			return
		}
		m.probing = peerProbe{msg: msg, id: msg.ID, link: m.link.number}
	}
	// Not counted in applying: nothing lands by a flush, and a node that becomes alone need not
	// wait for one (R4).
	m.owe(now, msg)
	m.act(Action{Kind: ActPeerFlush, Msg: msg})
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
