package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// A write that found no space on one node (R5, R13): the range is copied again, from the owner to
// the partner.

// repair makes both copies equal again after one store refused a write for lack of space: the range
// as it is here is re-copied to the peer, under the same lock (R5, R13). Zero blocks become holes
// there, so that the repair itself needs no space that was not there before.
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
		return o.Cmd.Off, o.Cmd.Len
	}
	end := o.lock.End
	if o.unit.size > 0 {
		end = max(o.lock.Off, min(end, o.unit.size))
	}
	return o.lock.Off, end - o.lock.Off
}

func (m *Machine) repairRead(now int64, o *Op, res scsi.Result) {
	switch {
	case m.gone():
		m.finish(now, o, scsi.Unavailable)
	case res != scsi.OK || len(o.Bad) > 0 && !m.link.peer.Sums:
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

// peerRefuses gives up on a peer that cannot hold a range (R5).
func (m *Machine) peerRefuses(now int64, why string) {
	if m.phase == Alone {
		m.resyncStop(now, why)
		return
	}
	m.excludeFirm(now, why)
}
