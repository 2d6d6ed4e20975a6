package pair

import (
	"iter"
	"maps"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// eachOp walks all ops, those on snapshots last; the one at hand may be removed.
func (m *Machine) eachOp() iter.Seq[*Op] {
	return func(yield func(*Op) bool) {
		for _, u := range m.sortedUnits() {
			for o := range u.ops.all() {
				if !yield(o) {
					return
				}
			}
		}
		m.snaps.ops.all()(yield)
	}
}

// sorted lists the keys of a table in order: a run can be replayed only if nothing depends on map order.
func sorted[V any](t map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(t)) }

// Submit starts a host's command that arrived at this node.
func (m *Machine) Submit(now int64, o *Op) {
	m.begin(now, o)
	m.settle(now)
}

func (m *Machine) begin(now int64, o *Op) {
	u := m.units[o.LUN]
	if u == nil {
		o.result = scsi.Unavailable
		m.reply(o)
		return
	}
	m.nextID++
	m.hostAt = now
	o.id, o.unit, o.since, o.stage = m.nextID, u, now, stNew
	u.ops.push(&o.place, o)
	m.dispatch(now, o)
}

// internal reports an op that no host sent.
func (o *Op) internal() bool { return o.copy || o.ckpt }

// dispatch moves an op that has not started: hold it, send it to the owner, or queue it for its range.
func (m *Machine) dispatch(now int64, o *Op) {
	u := o.unit
	switch {
	case m.phase == Fenced || m.phase == Outside || m.leaving != "":
		m.finish(now, o, scsi.Unavailable)
	case !m.Serving(now):
		m.unasked(o)
		m.hold(now, o)
	case o.stray && !m.pathKnown(o) && o.S.Life == nil:
		m.finish(now, o, scsi.Busy) // its host may have gone on over the other path meanwhile (R11a)
	case o.stray && !m.pathKnown(o) && !m.stays(now, o):
		m.hold(now, o)
	case !o.remote && !o.internal() && !m.pathHere(now, o):
		m.hold(now, o) // asked for first, so that the other node does not take the path for its own meanwhile
	case !o.remote && !o.internal() && !m.fresh(now, o):
		m.hold(now, o)
	case o.remote && o.calm && m.owns(u) && !u.starts.calm(o.S, o.sign):
		m.finish(now, o, scsi.Busy) // its host may have gone on since; it is asked for another sign where it is
	case u.quiesced > 0 || m.marking && !o.internal() || m.lags(u):
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

// setRange computes what an op locks; a flush locks nothing.
func (m *Machine) setRange(o *Op) {
	s := o.S
	o.lock.Shared = s.Kind == scsi.OpRead || s.Kind == scsi.OpMapped || o.copy
	o.lock.Off, o.lock.End = s.Off, s.Off+s.Len
	switch s.Kind {
	case scsi.OpFlush:
		o.lock.Off, o.lock.End = 0, 0
	case scsi.OpMapped:
		o.lock.Off, o.lock.End = s.Off, s.Off+512
	case scsi.OpUnmap:
		for i, r := range s.Ranges {
			if i == 0 || r.Off < o.lock.Off {
				o.lock.Off = r.Off
			}
			if i == 0 || r.Off+r.Len > o.lock.End {
				o.lock.End = r.Off + r.Len
			}
		}
	}
	o.lock.Off, o.lock.End = m.wide(o.lock.Off, o.lock.End)
	if o.lock.Granted == nil {
		o.lock.Granted = m.lockGranted(o)
	}
}

// run starts an op whose range is locked. This is the moment of R9 and R11b: what the host may still expect is
// judged here.
func (m *Machine) run(now int64, o *Op) {
	u := o.unit
	if o.stage == stHealLock {
		m.healNext(now, o)
		return
	}
	if o.stage != stLock {
		return // ended while it waited to be run
	}
	if !m.Serving(now) || u.quiesced > 0 || !m.owns(u) || m.marking && !o.internal() || m.lags(u) || o.calm && !u.starts.calm(o.S, o.signedAt()) {
		m.unlock(o)
		m.dispatch(now, o)
		return
	}
	s := o.S
	if !o.internal() {
		if s.Kind.Writes() && now-s.Arrived > int64(m.cfg.AgeMax) {
			m.Stats.Aged++
			m.finish(now, o, scsi.Busy)
			return
		}
		if r := m.cfg.Check(s, o.LUN); r != scsi.OK {
			m.finish(now, o, r)
			return
		}
	}
	if !o.internal() {
		u.starts.note(now, o.S)
	}
	u.started++
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

// StoreBegins tells that the disk has been asked for a read. Dm counts from here: a read may have waited long for its turn at
// a disk that is busy, and only one that the disk itself does not answer shows that it hangs. A read that the page cache
// answers needs none.
func (m *Machine) StoreBegins(now int64, o *Op) {
	if o.stage == stStore && o.waits {
		o.waits, o.since = false, now
	}
}

// startWrite sends a write to the peer first (R5), or straight to the store, durably, when alone (R1b).
func (m *Machine) startWrite(now int64, o *Op) {
	o.since = now
	o.seq = o.unit.seq // a comparison may have taken so long that this node has taken the unit over again meanwhile
	m.planWrite(o)
	m.hotOp(now, o) // the bits here and the peer's half go on in parallel
	o.unit.intents.dirty += o.S.Len
	if m.mirrors() {
		o.stage = stMirror
		m.ops[o.id] = o
		m.sendMirror(o)
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
	o.durable = o.S.FUA || m.phase == Alone
	m.storeOps++
	m.act(Action{Kind: ActStore, Op: o, Durable: o.durable})
}

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

// StoreDone reports that the local store is done with an op.
func (m *Machine) StoreDone(now int64, o *Op, res scsi.Result) {
	m.storeOps--
	if !o.waits { // else the page cache has answered, which shows nothing of the disk
		m.selfDone(now, o.unit)
	}
	switch o.stage {
	case stCompare:
		switch {
		case m.gone(o):
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
		case m.gone(o):
			m.finish(now, o, scsi.Unavailable)
		case res == scsi.Damaged:
			m.damaged(now, o)
		case res == scsi.OK && o.S.Kind.Writes() && !o.durable && m.phase == Alone:
			m.storeWrite(now, o) // we became alone meanwhile: write through (R1b)
		case res == scsi.NoSpace && o.S.Kind.Writes():
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
func (m *Machine) gone(o *Op) bool { return m.phase == Outside || m.phase == Fenced || m.leaving != "" }

// result ends an op whose store work is over; a store that failed makes the node step down (R12).
func (m *Machine) result(now int64, o *Op, res scsi.Result) {
	if res == scsi.WriteError || res == scsi.ReadError && m.phase == Paired {
		m.diskFailed(now, o, res)
		return
	}
	o.result = res
	m.answer(now, o)
}

func (m *Machine) diskFailed(now int64, o *Op, res scsi.Result) {
	if m.phase == Alone {
		// Nobody to hand over to: the host learns the truth, and nothing more is served from this store.
		m.finish(now, o, res)
	} else {
		m.finish(now, o, scsi.Unavailable)
	}
	switch {
	case res == scsi.WriteError:
		m.StoreFailed(now, "a write or flush of a host's command")
	case m.phase == Paired:
		m.StepDown(now, "the store failed (a read): "+diskFix)
	}
}

// diskFix is what to do about a store that failed; the rest the next life of the node does by itself.
const diskFix = "check the disk, replace it if this comes back"

// StoreFailed reports a failure that belongs to no op: writeback or fsync (R12).
func (m *Machine) StoreFailed(now int64, why string) {
	m.failed = true
	m.StepDown(now, "the store failed ("+why+"): "+diskFix)
	m.settle(now)
}

// answer sends the status once R1 allows it; until then the range stays locked.
func (m *Machine) answer(now int64, o *Op) {
	if m.gone(o) {
		m.finish(now, o, scsi.Unavailable)
		return
	}
	unflushed := m.phase == Alone && m.exposed > 0 && o.S.Kind.Writes() && !o.durable
	if !m.Serving(now) || unflushed {
		o.stage = stAnswer // R1: with the lease; alone, once the flush has made it durable
		return
	}
	m.finish(now, o, o.result)
}

// pump moves everything that was waiting for a decision.
func (m *Machine) pump(now int64) {
	if !m.Serving(now) && m.phase != Outside && m.phase != Fenced {
		return
	}
	for _, u := range m.sortedUnits() {
		m.quiet(now, u)
	}
	for o := range m.eachOp() {
		switch o.stage {
		case stHeld:
			m.dispatch(now, o)
		case stAnswer:
			m.answer(now, o)
		}
	}
	m.logNext(now)
	m.copyNext(now)
}
