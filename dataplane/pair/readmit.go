package pair

// The end of a resync: both nodes put on record whose halves they hold, the arbiter is asked for
// {a,b}, or it is given up.

// ownsAll reports whether the metadata say that this node owns every unit. Alone it does in any
// case; the entry that takes them over may be on its way, or an earlier transfer may have come
// after it. The peer may own none when it comes back: what this node has under way would land on
// what the owner does (R10).
func (m *Machine) ownsAll() bool {
	for _, u := range m.units {
		if u.owner != m.cfg.Self {
			return false
		}
	}
	return true
}

// copied: the joiner has everything, durably. Before the arbiter is asked this node has it on
// record that the joiner's store is the counterpart now; what it writes from here on has a bit.
func (m *Machine) copied(now int64) {
	if !m.ownsAll() { // R10
		// A transfer that began while both were members has given a LUN away since: the log is
		// barred now, so the check holds.
		m.resyncStop(now, "the joiner owns a LUN, but it is not a member yet")
		return
	}
	check := Checkpoint{Peer: m.link.peer.Store, Generation: m.rec.Generation, Count: m.saved.state.Check.Count, Settled: m.saved.state.Check.Count[m.cfg.Self.Peer()]}
	check.Count[m.cfg.Self]++
	m.resync.stage = rsRecord
	m.saved.state.Check = check
	m.saveState(thenAdmit)
}

func (m *Machine) admitSaved(now int64) {
	if m.resync.stage != rsRecord || m.phase != Alone {
		return
	}
	m.resync.stage = rsAdmit
	m.admit(now)
}

// joinFlushed: everything that was copied is durable here. Before the source hears of it, it is on
// record which store this one is the counterpart of.
func (m *Machine) joinFlushed(now int64, msg *Msg) {
	// The copy counts as a checkpoint that the source leads: a store from before it lacks its
	// number.
	c := Checkpoint{Peer: m.link.peer.Store, Generation: m.rec.Generation, Count: m.link.peer.Check.Count, Settled: m.link.peer.Check.Count[m.cfg.Self.Peer()]}
	c.Count[m.cfg.Self.Peer()]++
	m.saved.state.Check = c
	m.saved.state.Lost, m.saved.state.LostAll = false, false // the source's metadata say what was lost
	m.saved.state.Old = false
	m.cfg.Untrusted, m.cfg.Misfits = "", "" // what was not to be trusted has been replaced (R12)
	m.saveStateFor(thenJoined, msg)
}

func (m *Machine) joinSaved(now int64, w saveWait) {
	if w.n == m.link.number && m.link.up && m.resync.joined {
		m.send(&Msg{Type: MsgFlushAllAck, ID: w.msg.ID, Aux: int64(m.log.index)})
	}
}

// admit asks the arbiter for {a,b}. The source stays the chair.
func (m *Machine) admit(now int64) {
	if m.arb.busy || m.saved.saving || m.resync.stopped {
		return
	}
	m.resync.admitAt, m.resync.asked = now, true
	m.cas(now, Record{Cluster: m.cfg.Cluster, Pair: m.cfg.Pair, Epoch: m.rec.Epoch + 1, Generation: m.rec.Generation,
		Members: []Member{m.rec.Members[0], {Node: m.cfg.Self.Peer(), Store: m.link.peer.Store, Incarnation: m.link.peer.Incarnation}}})
}

// resyncAdmitted ends a resync that succeeded, on either node.
func (m *Machine) resyncAdmitted(now int64) {
	v := m.resync.view
	if m.resync.stage == rsAdmit {
		m.Stats.Readmits++
		v.Active, v.Finished = false, now
		m.distrust, m.faults.joined = "", now
		m.event("node %s was readmitted: %d bytes compared, %d bytes sent", m.cfg.Self.Peer(), v.Done, v.Sent)
	}
	m.resync = resyncState{view: v}
	m.plan = nil
}

// admitRefused: the arbiter still says {self}; if the link went down meanwhile the resync is over.
func (m *Machine) admitRefused(now int64) {
	m.resync.asked = false
	if m.resync.stage == rsAdmit && m.resync.stopped {
		m.resync.stage = rsFlush
		m.resyncStop(now, "the link went down")
	}
}

// resyncStop gives up; the next handshake begins again. While the arbiter may yet say {a,b} nothing
// is decided: writes still wait for the joiner (R1c) until the record is read.
func (m *Machine) resyncStop(now int64, why string) {
	r := &m.resync
	r.joined, r.install, r.gather = false, nil, nil
	if r.stage == rsIdle {
		return
	}
	if r.stage == rsAdmit && r.asked {
		// Whatever the arbiter has answered or not, the record decides, once it has been read
		// (admitRefused).
		r.stopped = true
		if !m.arb.busy && !m.saved.saving && m.arb.retryAt == 0 {
			m.get(now)
		}
		return
	}
	m.event("resync stopped: %s", why)
	if m.link.up {
		m.act(Action{Kind: ActDropLink, Text: why}) // frames that are queued refer to buffers of ops that end now
	}
	v := r.view
	v.Active = false
	*r = resyncState{retryAt: now + int64(m.cfg.Lease), view: v}
	m.copyStop(now)
	for o := range m.eachOp() {
		switch {
		case o.stage == stMirror:
			m.planAgain(o) // the joiner may have it or not
			delete(m.ops, o.id)
			m.afterMirror(now, o)
		case o.stage == stBoth && !o.peerOK:
			o.peerOK = true
			m.flushPart(now, o)
		case o.stage == stRepair:
			m.repairAlone(now, o)
		}
	}
	m.logPeerless(now)
	m.logNext(now) // what had to wait for the resync waits for nothing else
}
