package pair

import (
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Scrub compares both copies while the pair serves. The owner of a LUN reads range by range, each
// under its lock, so that no write is half way on either node, and the partner compares. A
// difference is reported with its place. What does not match its checksums is written again from
// the other copy (R15). If asked for, so is what differs otherwise, at the partner from the owner's
// copy: what says that this one is right is that nothing else was ever served.

// ScrubRange is the length of a range, but for the last one of an object.
const ScrubRange = scrubChunk

// scrubChunk is one range; scrubWindow of them are under way at most.
const (
	scrubChunk  = 1 << 20
	scrubWindow = 2
)

type scrubState struct {
	view     ScrubView
	repair   bool
	rate     int64 // bytes a second; 0: as fast as it goes
	objects  []CopyObject
	at       int
	off      int64
	inflight int
	nextAt   int64 // no range before
	saidAt   int64 // when progress was last reported
	n        uint64
	marks    []scrubMark
	found    []ScrubFinding
	findings uint64 // so far
}

// Scrub begins to compare objects that this node owns, at most rate bytes a second. False: a scrub
// is under way, and it continues.
func (m *Machine) Scrub(now int64, objs []CopyObject, rate int64, repair bool) bool {
	s := &m.scrub
	if s.view.Active || m.phase != Paired || !m.link.agreed {
		return false
	}
	m.scrubs++
	*s = scrubState{view: ScrubView{Active: true, Started: now}, repair: repair, rate: rate, objects: objs, n: m.scrubs}
	for _, o := range objs {
		s.view.Total += uint64(o.Size)
	}
	s.mark(now)
	m.event("scrub started: %d objects, %d bytes", len(objs), s.view.Total)
	m.scrubNext(now)
	m.settle(now)
	return true
}

// scrubNext keeps some ranges under way, within the rate. While hosts are at work it is one.
func (m *Machine) scrubNext(now int64) {
	s := &m.scrub
	if s.view.Active && now-s.saidAt > progressEvery {
		if s.saidAt != 0 {
			m.event("scrub: %s", progress(now, s.view.Started, s.view.Done, s.view.Total))
		}
		s.saidAt = now
	}
	window := scrubWindow
	if now-m.hosts.at < copyYield {
		window = 1
	}
	for s.view.Active && m.phase == Paired && m.link.agreed && !m.excl.active && s.inflight < window && now >= s.nextAt {
		if s.at == len(s.objects) {
			if s.inflight == 0 {
				m.scrubEnd(now, "")
			}
			return
		}
		obj := s.objects[s.at]
		if s.off >= obj.Size {
			s.at, s.off = s.at+1, 0
			continue
		}
		n := min(scrubChunk, obj.Size-s.off)
		o := &Op{Cmd: &scsi.Op{Kind: scsi.OpRead, Off: s.off, Len: n}, LUN: obj.ID, copy: true, scrub: true, gen: s.n}
		s.off += n
		s.inflight++
		if s.rate > 0 {
			s.nextAt = max(s.nextAt, now-int64(time.Second)) + n*int64(time.Second)/s.rate
		}
		u := m.units[obj.ID]
		if u == nil {
			u = &m.snaps
		}
		m.nextID++
		o.id, o.unit, o.since, o.stage = m.nextID, u, now, stNew
		u.ops.push(&o.place, o)
		m.dispatch(now, o)
	}
}

// ScrubStop ends a scrub early.
func (m *Machine) ScrubStop(now int64, why string) {
	m.scrubStop(now, why)
	m.settle(now)
}

func (m *Machine) scrubStop(now int64, why string) {
	if m.scrub.view.Active {
		m.scrubEnd(now, why)
	}
}

func (m *Machine) scrubEnd(now int64, why string) {
	v := &m.scrub.view
	m.scrub.skipRest(SkipApart)
	v.Active, v.Finished, v.Reason = false, now, why
	m.scrub.objects = nil
	if why == "" {
		m.event("scrub finished: %d bytes compared, %d ranges differed, %d repaired, %d skipped", v.Done, v.Mismatched, v.Repaired, v.Skipped)
	} else {
		m.event("scrub stopped after %d of %d bytes: %s", v.Done, v.Total, why)
	}
}

// scrubRead sends what the owner read, to be compared.
func (m *Machine) scrubRead(now int64, o *Op, res scsi.Result) {
	switch {
	case m.gone() || m.phase != Paired || !m.link.up || o.gen != m.scrub.n:
		m.finish(now, o, scsi.Unavailable)
	case res == scsi.Unavailable: // deleted meanwhile
		o.skip = SkipDeleted
		m.finish(now, o, res)
	case res != scsi.OK:
		o.skip = SkipUnreadable
		m.diskFailed(now, o, res) // as for a host's read: the other node has a disk that can be read
	case len(o.Bad) > 0:
		m.damaged(now, o)
	default:
		o.since = now
		m.ops[o.id] = o
		m.send(&Msg{Type: MsgCopySum, Flags: FlagScrub, Seq: o.seq, ID: o.id, LUN: o.LUN, Off: o.Cmd.Off, Len: o.Cmd.Len, Meta: o.Sum})
	}
}

// scrubCompared is the partner's answer.
func (m *Machine) scrubCompared(now int64, o *Op, msg *Msg) {
	s := &m.scrub
	m.Stats.ScrubCompared += uint64(o.Cmd.Len)
	switch {
	case msg.Result == scsi.Unavailable:
		if o.skip = SkipRefused; msg.Aux != 0 {
			o.skip = SkipDeleted // there; this node has not applied that entry yet
		}
		m.finish(now, o, scsi.Unavailable)
		return
	case msg.Result == scsi.OK && msg.Aux == 0:
		m.finish(now, o, scsi.OK)
		return
	case msg.Result == scsi.Damaged:
		m.event("scrub: LUN %s at %d+%d on node %s does not match its checksums", o.LUN, o.Cmd.Off, o.Cmd.Len, m.cfg.Self.Peer())
	case msg.Result != scsi.OK:
		m.event("scrub: node %s cannot read LUN %s at %d+%d", m.cfg.Self.Peer(), o.LUN, o.Cmd.Off, o.Cmd.Len)
	default:
		m.event("scrub: the copies of LUN %s differ at %d+%d: the copy on node %s differs from the one that node %s serves", o.LUN, o.Cmd.Off, o.Cmd.Len, m.cfg.Self.Peer(), m.cfg.Self)
	}
	m.Stats.ScrubMismatches++
	s.view.Mismatched++
	m.scrubFound(now, o, false)
	if !s.repair && msg.Result != scsi.Damaged { // what does not match its checksums is known to be the wrong one
		m.finish(now, o, scsi.OK)
		return
	}
	if o.Buf == nil { // a hole here
		o.Buf = make([]byte, o.Cmd.Len)
	}
	for sp := range m.spans(scsi.OpWrite, o.Cmd.Off, o.Cmd.Len, nil) {
		o.unit.intents.touch(sp) // the partner's copy is about to be written
	}
	o.since = now
	m.send(&Msg{Type: MsgCopyData, Flags: FlagScrub, Seq: o.seq, ID: o.id, LUN: o.LUN, Off: o.Cmd.Off, Len: o.Cmd.Len, Data: o.Buf[:o.Cmd.Len], Op: o})
}

func (m *Machine) scrubRepaired(now int64, o *Op, msg *Msg) {
	if msg.Result == scsi.OK {
		m.scrub.view.Repaired++
		m.Stats.ScrubRepaired++
		m.scrubFound(now, o, true)
		m.event("scrub: LUN %s at %d+%d on node %s was repaired from node %s", o.LUN, o.Cmd.Off, o.Cmd.Len, m.cfg.Self.Peer(), m.cfg.Self)
	} else {
		o.skip = SkipUnrepaired
	}
	m.finish(now, o, msg.Result)
}

// scrubEnded counts a range. Of a LUN that has moved or is gone the rest is skipped with it.
func (m *Machine) scrubEnded(now int64, o *Op) {
	s := &m.scrub
	if o.gen == s.n && s.inflight > 0 {
		s.inflight--
		if o.result == scsi.OK {
			s.view.Done += uint64(o.Cmd.Len)
		} else {
			why := m.skipOf(o)
			s.skip(why, 1, uint64(o.Cmd.Len))
			if (why == SkipMoved || why == SkipDeleted) && s.at < len(s.objects) && s.objects[s.at].ID == o.LUN {
				s.skipObject(why)
			}
		}
		s.mark(now)
	}
	m.act(Action{Kind: ActCopyFree, Op: o})
	m.scrubNext(now)
}

// scrubDrop ends the ranges that wait for a partner whose link is gone.
func (m *Machine) scrubDrop(now int64) {
	for _, id := range sorted(m.ops) {
		if o := m.ops[id]; o != nil && o.scrub {
			m.finish(now, o, scsi.Unavailable)
		}
	}
}

// onScrub is the partner's part: compare, or write what the owner has.
func (m *Machine) onScrub(now int64, msg *Msg) {
	u := m.units[msg.LUN]
	if m.phase != Paired || !m.link.agreed || m.excl.active || m.leave.why != "" || u != nil && (u.owner == m.cfg.Self || msg.Seq < u.seq) {
		m.send(&Msg{Type: MsgCopyNeed, ID: msg.ID, Result: scsi.Unavailable})
		return
	}
	m.applying++
	switch {
	case u == nil && msg.Type == MsgCopySum:
		m.act(Action{Kind: ActCompareSum, Msg: msg})
	case u == nil:
		m.act(Action{Kind: ActApply, Msg: msg, Durable: true})
	case msg.Type == MsgCopySum: // in order too: a frame that came twice may be on its way to the disk
		m.applyInOrder(now, u, msg)
	default: // as for a mirrored write: in order, and the region's bit before it (R7)
		msg.Flags |= FlagFUA
		m.applyInOrder(now, u, msg)
	}
}
