package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// How a command ends early.

// Abort asks that an op never take effect. It ends with Aborted if it has not started, else runs to
// its end.
func (m *Machine) Abort(now int64, o *Op) {
	switch o.stage {
	case stNew, stHeld, stLock:
		m.finish(now, o, scsi.Aborted)
	case stForward:
		if !o.aborted {
			o.aborted = true
			m.send(&Msg{Type: MsgForwardAbort, ID: o.id, Front: m.cfg.Incarnation.Nonce})
		}
	}
	m.settle(now)
}

// abandon ends an op that has not started; one that has keeps its lock until the store or the peer
// is done.
func (m *Machine) abandon(now int64, o *Op, res scsi.Result) {
	switch o.stage {
	case stNew, stHeld, stLock, stIntent, stHealLock, stHealAsk:
		m.finish(now, o, res)
	case stAnswer, stForward:
		m.finish(now, o, res)
	case stMirror:
		m.finish(now, o, res) // only where the peer's half no longer matters: this node is out
	case stRepair, stCopy:
		if m.ops[o.id] != nil { // else the store is at work and StoreDone ends it
			m.finish(now, o, res)
		}
	case stBoth:
		o.peerOK = true
		o.result = res
		m.flushPart(now, o)
	}
}
