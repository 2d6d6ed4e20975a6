package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// A host's command, in the order in which it happens. A write goes this way:
//
//	Submit      the command has arrived at this node
//	dispatch    is it to be executed, here, now? (late.go for R11, forward.go for the way to the owner, pace.go)
//	run         its range is locked: it starts (R9, R11b)
//	startWrite  the bits (intent.go) and the partner's half (partner.go) begin at once (R5, R7)
//	onMirrorAck the partner has it
//	storeWrite  it is applied here
//	StoreDone   this node has it (repair.go: no space; heal.go: a damaged block; storefail.go: the disk failed)
//	answer      may a status be sent? (R1)
//	finish      the range is unlocked, the host gets its status
//
// A read goes from run straight to the store, a flush by flush.go to both.

// Submit starts a host's command that arrived at this node.
func (m *Machine) Submit(now int64, o *Op) {
	m.begin(now, o)
	m.settle(now)
}

func (m *Machine) begin(now int64, o *Op) {
	u := m.units[o.LUN]
	if u == nil {
		if o.result = scsi.Unavailable; o.remote {
			m.replyRemote(now, o)
		} else {
			m.reply(o)
		}
		return
	}
	m.nextID++
	m.hosts.at = now
	o.id, o.unit, o.since, o.stage = m.nextID, u, now, stNew
	u.ops.push(&o.place, o)
	m.dispatch(now, o)
}

// dispatch moves an op that has not started: hold it, send it to the owner, or queue it for its
// range.
func (m *Machine) dispatch(now int64, o *Op) {
	switch {
	case m.gone():
		m.finish(now, o, scsi.Unavailable)
		return
	case !m.Serving(now):
		m.unasked(o)
		m.hold(now, o)
		return
	}
	switch m.judge(now, o) {
	case mustWait:
		m.hold(now, o)
		return
	case tooLate:
		m.finish(now, o, scsi.Busy)
		return
	}
	u := o.unit
	switch {
	case u.holds(o) || m.marking && !o.internal() || m.lags(u):
		m.hold(now, o)
	case m.owns(u) && !m.paceEnter(o):
		o.stage = stHeld
	case m.owns(u):
		m.setRange(o)
		o.stage = stLock
		if o.lock.Off >= o.lock.End || u.locks.Acquire(&o.lock) {
			m.run(now, o)
		}
	case o.copy && !o.scrub || o.remote && o.seq > u.seq:
		m.hold(now, o) // the entry that makes us owner is on its way
	case o.remote || o.ckpt || o.scrub:
		m.finish(now, o, scsi.Unavailable) // the sender is behind: it is the owner; never forwarded twice
	case !m.forwardRoom(o):
		m.hold(now, o)
	default:
		m.forward(now, o)
	}
}

func (m *Machine) hold(now int64, o *Op) {
	m.paceLeave(o)
	if o.stage != stHeld {
		o.stage = stHeld
		m.Stats.Held++
	}
}

// run starts an op whose range is locked. This is the moment of R9 and R11b: what the host may
// still expect is judged here.
func (m *Machine) run(now int64, o *Op) {
	u := o.unit
	if o.stage == stHealLock {
		m.healNext(now, o)
		return
	}
	if o.stage != stLock {
		return // ended while it waited to be run
	}
	if !m.Serving(now) || u.holds(o) || !m.owns(u) || m.marking && !o.internal() || m.lags(u) || m.overwritten(now, o) || m.overtaken(o) {
		m.unlock(o)
		m.dispatch(now, o)
		return
	}
	if m.aged(now, o) {
		m.Stats.Aged++
		m.finish(now, o, scsi.Busy)
		return
	}
	s := o.Cmd
	if !o.internal() {
		if r := m.cfg.Check(s, o.LUN); r != scsi.OK {
			m.finish(now, o, r)
			return
		}
		u.starts.note(now, s)
		m.wroteHere(now, o)
	}
	if !o.ckpt { // a transfer does not wait for it, and makes it void
		u.started++
	}
	if o.changes() {
		u.changing++
	}
	o.began, o.Started, o.StartedAt = true, true, now
	o.seq, o.since, o.result = u.seq, now, scsi.OK
	switch {
	case o.copy:
		o.stage = stCopy
		m.storeOps++
		m.act(Action{Kind: ActCopyRead, Op: o})
	case s.Kind == scsi.OpFlush:
		m.startFlush(now, o)
	case s.Kind == scsi.OpCompareWrite:
		o.stage = stCompare
		m.storeOps++
		m.act(Action{Kind: ActCompare, Op: o})
	case s.Kind.Writes():
		m.startWrite(now, o)
	default:
		o.stage, o.waits = stStore, true
		m.storeOps++
		m.act(Action{Kind: ActStore, Op: o})
	}
}

// startWrite sends a write to the peer first (R5), or straight to the store, durably, when alone
// (R1b).
func (m *Machine) startWrite(now int64, o *Op) {
	o.since = now
	o.seq = o.unit.seq // a comparison may have taken so long that this node has taken the unit over again meanwhile
	m.planWrite(o)
	m.hotOp(now, o) // the bits here and the peer's half are written in parallel
	o.unit.intents.dirty += o.Cmd.Len
	if m.mirrors() {
		o.stage = stMirror
		m.ops[o.id] = o
		m.sendMirror(o)
		return
	}
	m.storeWrite(now, o)
}

func (m *Machine) sendMirror(o *Op) { m.send(m.mirrorMsg(o)) }

func (m *Machine) mirrorMsg(o *Op) *Msg {
	s, msg := o.Cmd, m.cfg.Msg()
	*msg = Msg{Type: MsgMirror, Kind: s.Kind, Seq: o.seq, ID: o.id, LUN: o.LUN, Off: s.Off, Len: s.Len,
		Front: o.front, FrontN: o.frontN, Data: s.Data, Op: o, Spare: msg.Spare}
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
			// It stays locked and among the unanswered: the peer's exclusion ends it, or it is sent
			// again.
			m.peerRefuses(now, "the peer could not copy a range again after a failed write")
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
		m.resyncStop(now, "the joiner's store failed to write")
	default:
		// The partner's disk failed, and the partner steps down for that; the exclusion makes sure
		// of it. The write keeps its lock until then.
		m.excludeFirm(now, "the peer's store failed to write")
	}
}

// afterMirror applies a write here, once it is on the peer or there is no peer.
func (m *Machine) afterMirror(now int64, o *Op) {
	if m.gone() {
		m.finish(now, o, scsi.Unavailable)
		return
	}
	m.storeWrite(now, o)
}

// storeWrite applies a write here, once its regions are hot (R7).
func (m *Machine) storeWrite(now int64, o *Op) {
	o.since = now
	if !m.hotOp(now, o) {
		m.waitHot(o)
		return
	}
	o.stage = stStore
	o.durable = o.Cmd.FUA || m.phase == Alone
	m.storeOps++
	m.act(Action{Kind: ActStore, Op: o, Durable: o.durable})
}

// StoreBegins tells that the disk has been asked for a read. Dm counts from here: a read may have
// waited long in the queue of a disk that is busy, and only one that the disk itself does not
// answer shows that it hangs. A read that the page cache answers needs none.
func (m *Machine) StoreBegins(now int64, o *Op) {
	if o.stage == stStore && o.waits {
		o.waits, o.since = false, now
	}
}

// StoreDone reports that the local store is done with an op.
func (m *Machine) StoreDone(now int64, o *Op, res scsi.Result) {
	m.storeOps--
	if !o.waits { // else the page cache has answered, which shows nothing of the disk
		m.selfDone(now, o.unit)
	}
	switch o.stage {
	case stCompare:
		switch {
		case m.gone():
			m.finish(now, o, scsi.Unavailable)
		case res == scsi.Damaged:
			m.damaged(now, o)
		case res == scsi.OK:
			m.startWrite(now, o)
		default:
			m.result(now, o, res)
		}
	case stStore:
		switch {
		case m.gone():
			m.finish(now, o, scsi.Unavailable)
		case res == scsi.Damaged:
			m.damaged(now, o)
		case res == scsi.OK && o.Cmd.Kind.Writes() && !o.durable && m.phase == Alone:
			m.storeWrite(now, o) // we became alone meanwhile: write through (R1b)
		case res == scsi.NoSpace && o.Cmd.Kind.Writes():
			o.result = res
			m.repair(now, o)
		default:
			m.result(now, o, res)
		}
	case stBoth:
		o.selfOK = true
		if res != scsi.OK {
			o.result = res
		}
		m.flushPart(now, o)
	case stRepair:
		m.repairRead(now, o, res)
	case stCopy:
		m.copyRead(now, o, res)
	case stHealWrite:
		m.healWritten(now, o, res)
	}
	m.settle(now)
}

// gone reports that an op's outcome is no longer this node's to give.
func (m *Machine) gone() bool { return m.phase == Outside || m.phase == Fenced || m.leave.why != "" }

// result ends an op whose store work is over; a store that failed makes the node step down (R12).
func (m *Machine) result(now int64, o *Op, res scsi.Result) {
	if res == scsi.WriteError || res == scsi.ReadError && m.phase == Paired {
		m.diskFailed(now, o, res)
		return
	}
	o.result = res
	m.answer(now, o)
}

// answer sends the status once R1 allows it; until then the range stays locked.
func (m *Machine) answer(now int64, o *Op) {
	if m.gone() {
		m.finish(now, o, scsi.Unavailable)
		return
	}
	unflushed := m.phase == Alone && m.exposed > 0 && o.Cmd.Kind.Writes() && !o.durable
	if !m.Serving(now) || unflushed {
		o.stage = stAnswer // R1: with the lease; alone, once the flush has made it durable
		return
	}
	m.finish(now, o, o.result)
}

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
		if !o.ckpt {
			u.started--
		}
		if o.changes() {
			u.changing--
		}
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
	o.Cmd.Result = o.result
	o.Cmd.Medium = nil // under the caller's mutex: an abort that comes now finds nothing
	m.act(Action{Kind: ActReply, Op: o})
}
