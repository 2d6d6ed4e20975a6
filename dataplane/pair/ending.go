package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// How an op ends.

// finish ends an op: unlock, then tell the one that asked.
func (m *Machine) finish(now int64, o *Op, res scsi.Result) {
	if o.stage == stDone {
		return
	}
	if res == scsi.OK {
		m.timed(now, o)
	}
	if o.touched && res == scsi.Busy {
		res = scsi.NoSpace // BUSY says that nothing was changed (SAM-5 §5.3.1); this is what the owner found before it died
	}
	m.unlock(o)
	m.paceLeave(o)
	m.forwardEnds(now, o)
	held := o.stage == stHeld
	o.stage = stDone
	o.result = res
	u := o.unit
	o.place.drop()
	delete(m.ops, o.id)
	if held && res != scsi.Busy { // one that has waited too long comes again
		m.pathDrop(o)
	}
	if o.began {
		o.began = false
		u.started--
		m.quiet(now, u)
	}
	switch {
	case o.scrub:
		m.scrubEnded(now, o)
	case o.copy:
		m.copyEnded(now, o)
	case o.ckpt:
		m.ckptFlushed(now, o)
	case o.remote:
		m.replyRemote(now, o)
	default:
		m.reply(o)
	}
}

func (m *Machine) reply(o *Op) {
	o.stage = stDone
	o.S.Result = o.result
	o.S.Medium = nil // under the caller's mutex: an abort that comes now finds nothing
	m.act(Action{Kind: ActReply, Op: o})
}

func (m *Machine) unlock(o *Op) {
	l := &o.unit.locks
	if o.lock.Held() {
		l.Release(&o.lock)
	} else {
		l.Cancel(&o.lock)
	}
}

// abandon ends an op that has not started; one that has keeps its lock until the store or the peer is done.
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

// Abort asks that an op never take effect. It ends with Aborted if it has not started, else runs to its end.
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
