package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// Slow is not failed (R3, R12). A node leaves, or is excluded, for slowness only when that helps:
// when the other one is a member and is faster. Two disks that are equally busy make writes take
// long on both nodes; if one of them left, the other one would have the same load, write through,
// and a resync on top.

// lateness is what the unfinished work says of both nodes.
type lateness struct {
	self bool // an operation is at this node's store for longer than Dm, and the store has stopped or the peer did its part in less than a quarter of that
	peer bool // an operation waits for the peer for longer than Dm, and the peer has stopped, or lets it wait for three times that
	slow bool // the peer may be about to be late
	// The backing volume of the first one that waits, and a LUN on it; no LUN: the first backing
	// volume.
	of    *pacer
	group uint64
	lun   LUNID
}

// at notes where the operation is; nil: an entry of the log.
func (l *lateness) at(m *Machine, u *unit) {
	switch {
	case !l.self && !l.peer || l.of != nil:
	case u == nil:
		l.of = &m.pacers[0]
	default:
		l.of, l.group, l.lun = m.pacer(u), uint64(u.group%maxGroups), u.id
	}
}

// selfDone, peerDone: a store has finished something of a backing volume.
func (m *Machine) selfDone(now int64, u *unit) { m.pacer(u).selfAt = now }
func (m *Machine) peerDone(now int64, o *Op) {
	m.pacer(o.unit).peerAt = now
	o.peerTook = max(now-o.since, 1)
}

// look judges one op. For the flush of a checkpoint no host waits, and its steps may take long one
// after the other, so it counts only where nothing else gets on either.
func (m *Machine) look(now int64, o *Op, l *lateness) {
	age, limit, p := now-o.since, int64(m.cfg.MirrorMax), m.pacer(o.unit)
	if age <= limit/2 {
		return
	}
	self := func() {
		if age > limit {
			l.self = l.self || now-p.selfAt > limit || !o.ckpt && o.peerTook > 0 && o.peerTook < age/4
			l.at(m, o.unit)
		}
	}
	peer := func() {
		l.slow = l.slow || now-p.peerAt > limit/2
		if age > limit && !l.peer {
			l.peer = now-p.peerAt > limit || !o.ckpt && age > 3*limit || m.phase == Alone // a resync that is stopped begins again
			l.at(m, o.unit)
		}
	}
	switch o.stage {
	case stMirror, stRepair, stCopy, stHealAsk:
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
	case stStore, stIntent, stHealWrite:
		if !o.waits {
			self()
		}
	}
}

// tickOps watches how long things take: Dm for the peer and the store (R3), HoldMax for the
// undecided.
func (m *Machine) tickOps(now int64) {
	var l lateness
	for o := range m.eachOp() {
		if o.stage == stHeld {
			if now-o.since > int64(m.cfg.HoldMax) && (!o.copy || o.scrub) { // a resync waits: no host would repeat the request for its range
				m.finish(now, o, scsi.Busy)
			}
			continue
		}
		m.look(now, o, &l)
	}
	m.lookOwed(now, &l)
	for i := range m.pacers {
		if p := &m.pacers[i]; !l.self && !l.peer {
			p.self.since, p.peer.since = 0, 0
		}
	}
	switch {
	case m.phase == Paired && l.self && (l.peer || l.slow):
		m.Stats.BothLate++ // neither would help the other by going
	case m.phase == Paired && l.self && !m.peerAlive(now, &l):
	case m.phase == Paired && l.self && m.leave.why == "":
		m.Stats.SlowLeaves++
		m.StepDown(now, "the local store does not finish its I/O: "+diskFix)
		// What is at the disk cannot be answered before the disk does, while its sessions answer
		// pings: hosts would wait until their commands time out.
		m.act(Action{Kind: ActDropHosts, Text: "the disk does not finish its I/O"})
		return
	case m.phase == Paired && l.peer && !m.selfAlive(now, &l):
	case m.phase == Paired && l.peer:
		if !m.excl.active {
			m.Stats.SlowExcludes++
		}
		m.excludeFirm(now, "the peer does not answer a mirrored write, a flush or a log entry")
	case m.phase == Alone && l.peer && m.resync.mirror && !m.resync.stopped:
		m.peerFailed(now)
		m.resyncStop(now, "the joiner does not answer a mirrored write or a log entry")
	}
	m.tickQuiesce(now)
}

// prober asks a disk whether it is at work, again and again: it has to take a block durably. Only a
// disk that answers promptly for a while counts, because disks that stopped for one reason come
// back together, and not at one instant; and then one of them may first have to write out what its
// page cache has, and the other one may have none.
type prober struct {
	busy  bool
	at    int64  // when the probe under way was asked for
	id    uint64 // of the message, for the peer's
	link  uint64 // over which it went
	since int64  // each probe has been answered promptly; 0: the disk is not known to be at work
	again bool   // it was asked before: the answer may be to that
}

// alive asks, if no probe is under way, and tells what is known.
func (p *prober) alive(now, prompt int64, ask func()) bool {
	switch {
	case !p.busy:
		p.busy, p.at = true, now
		ask()
	case now-p.at > prompt:
		p.since = 0
	}
	return p.since != 0 && now-p.since >= prompt+writeOut
}

func (p *prober) answered(now, prompt int64) {
	late := p.again || now-p.at > prompt
	if p.busy, p.again = false, false; late {
		p.since = 0
	} else if p.since == 0 {
		p.since = now
	}
}

// writeOut is how long a disk needs at most for what its page cache has (ns); the store bounds it.
const writeOut = 250_000_000

// probeLost is how many times as long as a prompt answer takes a probe of the peer's disk is waited
// for. A probe, or its answer, is passed over by a node that excludes the other, or is at another
// record; if it then stays a member, no answer ever comes. One of 0.1.0 would begin one more flush.
const probeLost = 3

// prompt is how soon a probe is answered by a disk that is well, and for how long it has to be.
func (m *Machine) prompt() int64 { return int64(m.cfg.MirrorMax) / 10 }

// selfAlive tells whether this node's own disk does what the peer's does not. A mirrored write is
// at the peer first, so an owner whose disk has stopped as well need not have noticed.
func (m *Machine) selfAlive(now int64, l *lateness) bool {
	return l.of.self.alive(now, m.prompt(), func() {
		m.act(Action{Kind: ActProbe, LUN: l.lun, ID: l.group})
	})
}

// Probed reports ActProbe done: the disk has taken a block durably. A failure is reported by
// StoreFailed.
func (m *Machine) Probed(now int64, group uint64) {
	p := &m.pacers[group%maxGroups]
	p.self.answered(now, m.prompt())
	p.selfAt = now
	m.settle(now)
}

// peerAlive tells whether the peer's disk does what this node's does not: what has stopped here may
// be all that was under way. A peer of release 0.1.0 does not know the flag and flushes the LUN,
// which asks its disk if it has applied anything since the last flush.
func (m *Machine) peerAlive(now int64, l *lateness) bool {
	p := &l.of.peer
	switch {
	case p.busy && p.link != m.link.number:
		p.busy, p.since, p.again = false, 0, false // the answer went with the link
	case p.busy && m.link.peer.Moves && now-p.at > probeLost*m.prompt():
		p.busy, p.since, p.again = false, 0, true
	}
	return p.alive(now, m.prompt(), func() {
		m.nextID++
		p.id, p.link = m.nextID, m.link.number
		m.send(&Msg{Type: MsgFlush, Flags: FlagProbe, ID: p.id, LUN: l.lun})
	})
}

// peerProbed is the peer's answer; false: the message answers something else.
func (m *Machine) peerProbed(now int64, msg *Msg) bool {
	for i := range m.pacers {
		if p := &m.pacers[i]; p.peer.busy && p.peer.id == msg.ID {
			if p.peer.answered(now, m.prompt()); msg.Result != scsi.OK {
				p.peer.since = 0
			}
			return true
		}
	}
	return false
}
