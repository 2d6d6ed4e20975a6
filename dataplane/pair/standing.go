package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// What a change of standing means for the commands under way: alone, outside.

// becomeAlone resolves what the dead peer owed: mirrored writes continue alone, forwarded commands
// are executed here unless their mirror frame shows that they already were (R11d).
func (m *Machine) becomeAlone(now int64) {
	m.exposed = 1 // before anything that may answer a command
	m.dropFrames("this node is alone")
	m.resync = resyncState{}
	m.plan = nil
	if m.watchAt = now + int64(m.cfg.RecordEvery); m.unsure != 0 {
		m.watchAt = now
	}
	if m.holdTill = 0; m.saved.state.LostAll || m.renewing { // by force; or our own former life may still be there
		m.holdTill = now + int64(m.replaces())
		m.reason = "waiting until an earlier process that served alone must have read the record"
	}
	m.renewing = false
	m.ckptDrop()
	m.scrubDrop(now)
	m.scrubStop(now, "the peer is not a member any more")
	m.exposeFlush()
	m.markLost()
	m.dropRemote(now)
	for o := range m.eachOp() {
		if o.stage == stHeld && !o.remote && !o.internal() && !m.pathKnown(o) {
			m.unasked(o) // whether its host has continued at the other node is not known here
		}
	}
	m.pathForget(now)
	for o := range m.eachOp() {
		switch o.stage {
		case stMirror:
			delete(m.ops, o.id)
			m.afterMirror(now, o)
		case stBoth:
			if !o.peerOK {
				o.peerOK = true
				m.flushPart(now, o)
			}
		case stRepair:
			m.repairAlone(now, o)
		case stHealAsk:
			m.accept(now, o)
		}
	}
	m.redoAll(now)
	m.logAlone(now)
	m.act(Action{Kind: ActTakeAll})
}

// exposeFlush makes durable what was written while there were two, once every mirrored write that
// was under way has been applied: one that lands after the flush would be acknowledged as if it
// were in it.
func (m *Machine) exposeFlush() {
	if m.straggle == 0 {
		m.flushSelf()
	}
}

// redoAll takes back what was forwarded to the dead owner, once every mirrored write that it sent
// has been applied: only then is it known which of ours took effect there.
func (m *Machine) redoAll(now int64) {
	if m.phase != Alone || m.straggle > 0 {
		return
	}
	for o := range m.eachOp() {
		if o.stage == stForward {
			m.redo(now, o)
		}
	}
}

// redo takes a forwarded command back after the owner is gone.
func (m *Machine) redo(now int64, o *Op) {
	delete(m.ops, o.id)
	if o.peerOK {
		// Its write is here, mirrored by the owner before it died; it is acknowledged once the
		// flush is done.
		o.result, o.Forwarded = scsi.OK, true
		m.answer(now, o)
		return
	}
	if o.aborted {
		m.finish(now, o, scsi.Aborted)
		return
	}
	if o.touched && o.Cmd.Kind == scsi.OpCompareWrite {
		// It would be compared with what it has changed itself. The owner cannot answer any more
		// what it would have.
		o.result = scsi.NoSpace
		m.answer(now, o)
		return
	}
	m.forwardEnds(now, o)
	o.stage = stNew
	m.dispatch(now, o)
}

// SelfFlushed reports the end of a flush of everything: before a claim, or after becoming alone.
func (m *Machine) SelfFlushed(now int64, ok bool) {
	m.flushes--
	if !ok {
		m.exposed = 0
		m.StoreFailed(now, "a flush of the whole store")
		return
	}
	if m.flushes > 0 {
		return // one that was begun later, after more was written, is still to come
	}
	if m.phase == Alone && m.exposed > 0 {
		m.event("all acknowledged writes are durable on this node, %d ms after it became alone", (now-m.since)/1_000_000)
	}
	m.exposed = 0
	if m.claimed == claimFlushing {
		m.claimFlushed(now)
	}
	if m.phase == Alone && m.saved.state.Flushed < m.rec.Epoch {
		m.saved.state.Flushed = m.rec.Epoch
		m.saveState(thenNothing)
	}
	m.pump(now)
	m.settle(now)
}

// becomeOutside ends everything this node can no longer answer for; the host goes to the other
// path.
func (m *Machine) becomeOutside(now int64) {
	m.resync = resyncState{}
	m.plan = nil
	m.marking = false
	m.ckptDrop()
	m.scrubDrop(now)
	m.scrubStop(now, "this node is not a member any more")
	m.excl = exclusion{}
	m.link.agreed = false
	m.exposed = 0
	m.claimed = claimNone
	m.dropRemote(now)
	m.pathForget(now)
	m.copyStop(now)
	m.failAll(now, scsi.Unavailable)
	m.logFail(now)
	for _, id := range sorted(m.quiescing.open) {
		m.act(Action{Kind: ActQuiet, ID: id, Result: scsi.Unavailable})
		for _, u := range m.quiescing.open[id].units {
			u.count(m.quiescing.open[id], -1) // the record may come to this node again in this life
		}
	}
	clear(m.quiescing.open)
}
