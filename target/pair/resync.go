package pair

import (
	"time"

	"github.com/gemel-storage/gemel/target/scsi"
)

// Readmission: the lone member gives its whole metadata to the joiner, copies every object range by range, each
// under its lock from the read to the joiner's answer (R7), has the joiner make all of it durable, and asks the
// arbiter for {a,b} again. From the moment the joiner has the metadata every new write is mirrored to it as well,
// so the copy runs once over each range.

type resyncStage uint8

const (
	rsIdle    resyncStage = iota
	rsInstall             // the joiner installs the metadata
	rsList                // what is there to copy
	rsCopy                // ranges are compared and copied
	rsFlush               // the joiner makes everything durable; the log is barred
	rsAdmit               // the arbiter is asked
)

// copyWindow ranges of copyChunk bytes are under way at once: enough to hide the link's latency, few enough
// that a host's write never waits long for a range that is being copied.
const (
	copyChunk  = 1 << 20
	copyWindow = 4
)

// CopyObject is a file that both nodes must hold alike.
type CopyObject struct {
	ID   LUNID
	Size int64 // bytes
}

type resyncState struct {
	stage   resyncStage
	mirror  bool // source: writes go to the joiner too
	durable bool // and are durable there before the status (R1c)
	joined  bool // joiner: the metadata is installed
	install *Msg // joiner: waits for our own store work to end (R4)
	retryAt int64
	admitAt int64
	movedAt int64 // the joiner last answered
	stopped bool  // the link went down while the arbiter was asked

	objects  []CopyObject
	copied   map[LUNID]bool
	obj      int
	off      int64
	inflight int
	view     ResyncView
}

// ResyncView is the progress of the present or last resync at its source.
type ResyncView struct {
	Active     bool
	Done       uint64 // bytes compared or copied
	Total      uint64
	Sent       uint64 // bytes that differed and were sent
	Full       bool
	FullReason string
	Started    int64
	Finished   int64
}

// stuckAfter is how long a resync may go without an answer of the joiner; a flush of everything is the longest step.
const stuckAfter = 60 * time.Second

// joinerReady reports whether the peer stands where a resync can begin: outside, having acted on our record.
func (m *Machine) joinerReady() bool {
	p := &m.peer
	return m.linked && m.peerKnown && p.Phase == Outside && p.Epoch == m.rec.Epoch && p.Durable >= m.rec.Epoch && !p.Leaving
}

func (m *Machine) resyncBegin(now int64) {
	r := &m.resync
	if r.stage != rsIdle || now < r.retryAt || m.log.cur != nil || m.log.selfAt || m.exposed > 0 || m.arb.busy || m.leaving != "" {
		return // tickResync tries again
	}
	for _, u := range m.units {
		if u.owner != m.cfg.Self {
			// The entry that takes every unit over is on its way, or a transfer of before came after it. Nobody
			// but this node may own a unit when the peer comes back.
			r.retryAt = now + int64(m.cfg.Lease)
			m.act(Action{Kind: ActTakeAll})
			return
		}
	}
	m.copies++
	*r = resyncState{stage: rsInstall, movedAt: now, copied: map[LUNID]bool{}, view: ResyncView{Active: true, Full: true,
		FullReason: "no intent bitmap is kept: every range is compared by checksum, those that differ are sent", Started: now}}
	m.event("resync to node %s begins", m.cfg.Self.Peer())
	m.act(Action{Kind: ActExport})
}

// SendMeta gives the whole metadata as it is at index, for ActExport.
func (m *Machine) SendMeta(now int64, index uint64, meta []byte) {
	if m.resync.stage == rsInstall && m.phase == Alone {
		m.send(&Msg{Type: MsgMetaInstall, Aux: int64(index), Meta: meta})
	}
	m.settle(now)
}

func (m *Machine) tickResync(now int64) {
	r := &m.resync
	if m.phase == Alone && m.joinerReady() {
		m.resyncBegin(now)
	}
	if moving := r.stage != rsIdle && r.stage != rsAdmit; moving && now-r.movedAt > int64(stuckAfter) {
		m.resyncStop(now, "the joiner has not answered for too long")
	}
	if m.resync.stage == rsAdmit && !m.arb.busy && !m.saving && m.arb.want == nil && m.phase == Alone {
		m.admit(now)
	}
	m.copyNext(now)
	m.installNow(now)
}

func (m *Machine) onResync(now int64, msg *Msg) {
	r := &m.resync
	source := m.phase == Alone && r.stage != rsIdle
	r.movedAt = now
	joiner := m.phase == Outside
	switch msg.Type {
	case MsgMetaInstall:
		if joiner {
			r.joined, r.install = false, msg
			m.installNow(now)
		}
	case MsgMetaAck:
		if source && r.stage == rsInstall {
			if msg.Result != scsi.OK {
				m.resyncStop(now, "the joiner could not install the metadata")
				return
			}
			r.mirror, r.stage = true, rsList
			m.act(Action{Kind: ActResyncList})
			m.pump(now)
		}
	case MsgCopySum:
		if joiner && r.joined {
			m.applying++
			m.act(Action{Kind: ActCompareSum, Msg: msg})
		}
	case MsgCopyData:
		if joiner && r.joined {
			m.applying++
			m.act(Action{Kind: ActApply, Msg: msg})
		}
	case MsgFlushAll:
		if joiner && r.joined {
			m.applying++
			m.act(Action{Kind: ActFlushAll, Msg: msg})
		}
	case MsgCopyNeed:
		if o := m.ops[msg.ID]; source && o != nil && o.copy {
			m.copyNeed(now, o, msg)
		}
	case MsgCopyAck:
		if o := m.ops[msg.ID]; source && o != nil && o.copy {
			if msg.Result != scsi.OK {
				m.resyncStop(now, "the joiner's store refused a copy")
				return
			}
			m.finish(now, o, scsi.OK)
		}
	case MsgFlushAllAck:
		if source && r.stage == rsFlush {
			if msg.Result != scsi.OK || uint64(msg.Aux) != m.log.index {
				m.resyncStop(now, "the joiner could not make the copy durable")
				return
			}
			r.stage = rsAdmit
			m.admit(now)
		}
	}
}

// installNow begins the installation once none of our own store work is left: no straggling write of an earlier
// life as a member lands on the copy (R4).
func (m *Machine) installNow(now int64) {
	r := &m.resync
	if r.install == nil || m.storeOps > 0 || m.applying > 0 || m.phase != Outside || m.log.selfAt {
		return
	}
	m.act(Action{Kind: ActInstall, Msg: r.install})
	r.install = nil
}

// Installed reports ActInstall.
func (m *Machine) Installed(now int64, link uint64, index uint64, units []UnitInfo, res scsi.Result) {
	if link != m.linkN || !m.linked || m.phase != Outside {
		return
	}
	if res == scsi.OK {
		m.log.index, m.log.cur = index, nil
		m.resync.joined = true
		m.claimed = claimNone
		clear(m.units)
		m.order = nil
		m.SetUnits(now, units)
		m.reason = "being copied to"
	}
	m.send(&Msg{Type: MsgMetaAck, Result: res})
	m.settle(now)
}

// SumDone reports ActCompareSum.
func (m *Machine) SumDone(now int64, link uint64, msg *Msg, need bool, res scsi.Result) {
	m.applyEnded(now)
	if link == m.linkN && m.linked {
		aux := int64(0)
		if need {
			aux = 1
		}
		m.send(&Msg{Type: MsgCopyNeed, ID: msg.ID, Aux: aux, Result: res})
	}
	m.settle(now)
}

// ResyncObjects answers ActResyncList with everything that must be alike.
func (m *Machine) ResyncObjects(now int64, objs []CopyObject) {
	r := &m.resync
	if r.stage != rsList || m.phase != Alone {
		return
	}
	r.objects, r.obj, r.off = r.objects[:0], 0, 0
	for _, o := range objs {
		if !r.copied[o.ID] {
			r.objects = append(r.objects, o)
			r.view.Total += uint64(o.Size)
		}
	}
	if len(r.objects) == 0 {
		r.stage, r.durable = rsFlush, true
		m.send(&Msg{Type: MsgFlushAll})
	} else {
		r.stage = rsCopy
	}
	m.copyNext(now)
	m.settle(now)
}

// copyNext keeps the window full.
func (m *Machine) copyNext(now int64) {
	r := &m.resync
	for r.stage == rsCopy && m.phase == Alone && r.inflight < copyWindow {
		if r.obj == len(r.objects) {
			if r.inflight == 0 {
				r.stage = rsList // look again: what was made meanwhile is copied as well
				m.act(Action{Kind: ActResyncList})
			}
			return
		}
		obj := r.objects[r.obj]
		if r.off >= obj.Size {
			r.copied[obj.ID] = true
			r.obj, r.off = r.obj+1, 0
			continue
		}
		n := min(copyChunk, obj.Size-r.off)
		o := &Op{S: &scsi.Op{Kind: scsi.OpRead, Off: r.off, Len: n}, LUN: obj.ID, copy: true, gen: m.copies}
		r.off += n
		r.inflight++
		u := m.units[obj.ID]
		if u == nil {
			u = &unit{id: obj.ID, owner: m.cfg.Self} // a snapshot: nobody writes it
		}
		m.nextID++
		o.id, o.unit, o.since, o.stage = m.nextID, u, now, stNew
		u.ops.push(o)
		m.dispatch(now, o)
	}
}

func (m *Machine) copyRead(now int64, o *Op, res scsi.Result) {
	r := &m.resync
	switch {
	case m.gone(o) || r.stage != rsCopy || o.gen != m.copies:
		m.finish(now, o, scsi.Unavailable)
	case res == scsi.Unavailable: // deleted meanwhile
		m.finish(now, o, scsi.OK)
	case res != scsi.OK:
		m.finish(now, o, res)
		m.resyncStop(now, "a range could not be read here")
	default:
		m.ops[o.id] = o
		m.send(&Msg{Type: MsgCopySum, ID: o.id, LUN: o.LUN, Off: o.S.Off, Len: o.S.Len, Meta: o.Sum})
	}
}

func (m *Machine) copyNeed(now int64, o *Op, msg *Msg) {
	r := &m.resync
	m.Stats.ResyncCompared += uint64(o.S.Len)
	if msg.Result != scsi.OK {
		m.resyncStop(now, "the joiner's store failed")
		return
	}
	if msg.Aux == 0 {
		m.finish(now, o, scsi.OK)
		return
	}
	r.view.Sent += uint64(o.S.Len)
	m.Stats.ResyncBytes += uint64(o.S.Len)
	m.send(&Msg{Type: MsgCopyData, ID: o.id, LUN: o.LUN, Off: o.S.Off, Len: o.S.Len, Data: o.Buf[:o.S.Len], Op: o})
}

func (m *Machine) copyEnded(now int64, o *Op) {
	if r := &m.resync; o.gen == m.copies && r.inflight > 0 {
		r.inflight--
		if o.result == scsi.OK {
			r.view.Done += uint64(o.S.Len)
		}
	}
	m.act(Action{Kind: ActCopyFree, Op: o})
	m.copyNext(now)
}

// admit asks the arbiter for {a,b}. The source stays the chair.
func (m *Machine) admit(now int64) {
	if m.arb.busy || m.saving || m.resync.stopped {
		return
	}
	m.resync.admitAt = now
	m.cas(now, Record{Cluster: m.cfg.Cluster, Pair: m.cfg.Pair, Epoch: m.rec.Epoch + 1, Generation: m.rec.Generation,
		Members: []Member{m.rec.Members[0], {Node: m.cfg.Self.Peer(), Store: m.peer.Store, Incarnation: m.peer.Incarnation}}})
}

// resyncAdmitted ends a resync that succeeded, on either node.
func (m *Machine) resyncAdmitted(now int64) {
	v := m.resync.view
	if m.resync.stage == rsAdmit {
		m.Stats.Readmits++
		v.Active, v.Finished = false, now
		m.event("node %s is readmitted: %d bytes compared, %d sent", m.cfg.Self.Peer(), v.Done, v.Sent)
	}
	m.resync = resyncState{view: v}
}

// admitRefused: the arbiter still says {self}; if the link went down meanwhile the resync is over.
func (m *Machine) admitRefused(now int64) {
	if m.resync.stage == rsAdmit && m.resync.stopped {
		m.resync.stage = rsFlush
		m.resyncStop(now, "the link went down")
	}
}

// resyncStop gives up; the next handshake begins anew. While the arbiter may yet say {a,b} nothing is decided:
// writes go on waiting for the joiner (R1c) until the record is read.
func (m *Machine) resyncStop(now int64, why string) {
	r := &m.resync
	r.joined, r.install = false, nil
	if r.stage == rsIdle {
		return
	}
	if r.stage == rsAdmit && (m.arb.busy || m.saving || m.arb.want != nil) {
		r.stopped = true
		return
	}
	m.event("resync stopped: %s", why)
	if m.linked {
		m.act(Action{Kind: ActDropLink, Text: why}) // frames that are queued refer to buffers of ops that end now
	}
	v := r.view
	v.Active = false
	*r = resyncState{retryAt: now + int64(m.cfg.Lease), view: v}
	m.copyStop(now)
	for o := range m.eachOp() {
		switch {
		case o.stage == stMirror:
			delete(m.ops, o.id)
			m.afterMirror(now, o)
		case o.stage == stBoth && !o.peerOK:
			o.peerOK = true
			m.flushPart(now, o)
		case o.stage == stRepair:
			m.repairAlone(now, o)
		}
	}
	if m.log.cur != nil && !m.log.peerOK && !m.log.selfAt {
		m.log.peerOK = true
		m.logSelf()
	}
}

// copyStop ends the copies that wait for the joiner, those of snapshots included, which no table of units holds.
func (m *Machine) copyStop(now int64) {
	for _, id := range sorted(m.ops) {
		if o := m.ops[id]; o != nil && o.copy {
			m.finish(now, o, scsi.Unavailable)
		}
	}
}
