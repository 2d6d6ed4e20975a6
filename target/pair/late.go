package pair

import "github.com/gemel-storage/gemel/target/scsi"

// Slow is not failed (R3, R12). A node leaves, or is excluded, for slowness only when that helps: when the other one is a member and
// is faster. Two disks that are equally busy make writes take long on both nodes; if one of them left, the other one
// would have the same load, write through, and a resync on top.

// lateness is what the unfinished work says of both nodes.
type lateness struct {
	self bool // an operation is at this node's store for longer than Dm, and the store has stopped or the peer did its part in less than a quarter of that
	peer bool // an operation waits for the peer for longer than Dm, and the peer has stopped, or lets it wait for three times that
}

// selfDone, peerDone: a store has finished something of a backing volume.
func (m *Machine) selfDone(now int64, u *unit) { m.pacer(u).selfAt = now }
func (m *Machine) peerDone(now int64, o *Op) {
	m.pacer(o.unit).peerAt = now
	o.peerTook = max(now-o.since, 1)
}

// look judges one op.
func (m *Machine) look(now int64, o *Op, l *lateness) {
	age, limit, p := now-o.since, int64(m.cfg.MirrorMax), m.pacer(o.unit)
	if age <= limit {
		return
	}
	self := func() {
		l.self = l.self || now-p.selfAt > limit || o.peerTook > 0 && o.peerTook < age/4
	}
	peer := func() {
		l.peer = l.peer || now-p.peerAt > limit || age > 3*limit
	}
	switch o.stage {
	case stMirror, stRepair, stCopy:
		if m.ops[o.id] != nil {
			peer()
		}
	case stBoth:
		if !o.peerOK {
			peer()
		}
		if !o.selfOK {
			self()
		}
	case stStore, stIntent:
		if !o.waits {
			self()
		}
	}
}

// tickOps watches how long things take: Dm for the peer and the store (R3), HoldMax for the undecided.
func (m *Machine) tickOps(now int64) {
	var l lateness
	for o := range m.eachOp() {
		if o.stage == stHeld {
			if now-o.since > int64(m.cfg.HoldMax) && (!o.copy || o.scrub) { // a resync waits: nobody would ask for its range again
				m.finish(now, o, scsi.Busy)
			}
			continue
		}
		m.look(now, o, &l)
	}
	if l.self && l.peer && m.phase == Paired {
		m.Stats.BothLate++ // neither would help the other by going
		m.tickQuiesce(now)
		return
	}
	if l.self && m.phase == Paired && m.leaving == "" {
		m.Stats.SlowLeaves++
		m.StepDown(now, "the local store does not finish its work: check the disk")
		// What is at the disk cannot be answered before the disk does, while its sessions answer pings: hosts would wait until
		// their commands time out.
		m.act(Action{Kind: ActDropHosts, Text: "the disk does not finish its work"})
		return
	}
	if l.peer && m.phase == Paired {
		if !m.excl.active {
			m.Stats.SlowExcludes++
		}
		m.excludeFirm(now, "a mirrored write stays unanswered")
	}
	if l.peer && m.phase == Alone && m.resync.mirror {
		m.resyncStop(now, "the joiner does not answer mirrored writes")
	}
	m.tickQuiesce(now)
}
