package pair

import (
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A command that arrives at the non-owner is executed by the owner. The front end keeps it until
// the result comes; after a break of the link, or when the owner may have ignored it, it asks again
// under the same number, and the owner answers a duplicate of a write from the recorded result
// (R11d), whatever that is.

// forwardWindow bounds in bytes what is forwarded and not answered, so that neither mirrored writes
// nor answers wait long behind it on the link (docs/decisions/0011). A single command may be
// longer.
const forwardWindow = 4 << 20

// forwarding is what this node has forwarded, and what it executes for the front end that forwards
// to it.
type forwarding struct {
	bytes int64    // forwarded and not answered: what the commands carry there or bring back
	held  bool     // commands wait for some of them
	open  []uint64 // numbers of forwarded commands in their order, from first on; some may have ended
	first int
	done  map[uint64]scsi.Result
	in    map[uint64]*Op
	from  uint64 // front-end nonce the two tables belong to
	names names
}

func (o *Op) bulk() int64 { return int64(len(o.Cmd.Data)) + int64(len(o.Cmd.Verify)) }

// forwardRoom reports whether the window has room for a command. A held command continues when an
// answer comes.
func (m *Machine) forwardRoom(o *Op) bool {
	if m.fwd.bytes == 0 || m.fwd.bytes+o.bulk() <= forwardWindow {
		return true
	}
	m.fwd.held = true
	return false
}

// forwardEnds gives back the room of a command that was answered, or that this node executes itself
// now.
func (m *Machine) forwardEnds(now int64, o *Op) {
	if o.room == 0 {
		return
	}
	m.fwd.bytes -= o.room
	o.room = 0
	if m.fwd.held && m.fwd.bytes <= forwardWindow/2 {
		m.fwd.held = false
		for _, u := range m.sortedUnits() {
			if u.owner == m.cfg.Self {
				continue
			}
			for w := range u.ops.all() {
				if w.stage == stHeld {
					m.due.again = append(m.due.again, w)
				}
			}
		}
	}
}

func (m *Machine) forward(now int64, o *Op) {
	m.paceLeave(o)
	o.room = o.bulk()
	m.fwd.bytes += o.room
	o.stage, o.since, o.Started = stForward, now, true
	o.peerOK, o.seen = false, false
	m.nextID++ // a new number each time: the owner takes a repeated one for the same execution
	o.id = m.nextID
	m.ops[o.id] = o
	m.fwd.open = append(m.fwd.open, o.id)
	m.Stats.Forwarded++
	m.wroteHere(now, o)
	o.Cmd.Result = scsi.OK
	o.seq = o.unit.seq
	if o.sign != 0 {
		m.Stats.Signed++
	}
	m.send(m.forwardMsg(now, o))
}

// forwardMsg carries the command's age as it is now (R11b): the owner's clock is another.
func (m *Machine) forwardMsg(now int64, o *Op) *Msg {
	s, msg := o.Cmd, m.cfg.Msg()
	spare := msg.Spare[:0]
	*msg = Msg{Type: MsgForward, Kind: s.Kind, Seq: o.seq, ID: o.id, LUN: o.LUN, Off: s.Off, Len: s.Len,
		Front: m.cfg.Incarnation.Nonce, FrontN: m.lowestForward(), Aux: now - s.Arrived, Op: o}
	if s.FUA {
		msg.Flags |= FlagFUA
	}
	if s.Unmap {
		msg.Flags |= FlagUnmap
	}
	msg.Meta = appendNexus(spare, s.Nexus)
	if o.sign != 0 {
		msg.Flags |= FlagSign
		msg.Meta = appendSign(msg.Meta, o.sign)
	}
	switch s.Kind {
	case scsi.OpUnmap:
		msg.Meta = append(msg.Meta, encodeRanges(s.Ranges)...)
	case scsi.OpCompareWrite:
		msg.Meta = append(msg.Meta, s.Verify...)
		msg.Data = s.Data
	case scsi.OpWrite, scsi.OpWriteSame:
		msg.Data = s.Data
	}
	return msg
}

// lowestForward is the oldest command number still open here; the owner forgets results below it.
func (m *Machine) lowestForward() uint64 {
	f := &m.fwd
	for ; f.first < len(f.open); f.first++ {
		id := f.open[f.first]
		if o := m.ops[id]; o != nil && o.stage == stForward {
			if f.first >= openGone {
				f.open = append(f.open[:0], f.open[f.first:]...)
				f.first = 0
			}
			return id
		}
	}
	f.open, f.first = f.open[:0], 0
	return m.nextID
}

// openGone is how many numbers of commands that have ended may lie before the others: their memory
// is used again, and not moved for each of them.
const openGone = 64

// onForward executes a command for the peer's front end.
func (m *Machine) onForward(now int64, msg *Msg) {
	ours := msg.Front == m.fwd.from && m.phase == Paired
	if ours {
		for id := range m.fwd.done {
			if id < msg.FrontN {
				delete(m.fwd.done, id)
			}
		}
		if res, ok := m.fwd.done[msg.ID]; ok {
			m.send(&Msg{Type: MsgForwardResult, ID: msg.ID, Result: res})
			return
		}
		if m.fwd.in[msg.ID] != nil {
			return // at work already; its result goes out on the link that is up then
		}
	}
	if !ours || m.leave.why != "" { // never started, which for a duplicate only the above can tell
		m.send(&Msg{Type: MsgForwardResult, ID: msg.ID, Result: scsi.Unavailable})
		return
	}
	o := m.cfg.Op()
	s := &o.own
	*s = scsi.Op{Kind: msg.Kind, Off: msg.Off, Len: msg.Len, FUA: msg.Flags&FlagFUA != 0,
		Unmap: msg.Flags&FlagUnmap != 0, Arrived: now - msg.Aux, Data: msg.Data}
	rest, err := m.fwd.names.decodeNexus(msg.Meta, &s.Nexus)
	sign := int64(0)
	if err == nil && msg.Flags&FlagSign != 0 {
		sign, rest, err = decodeSign(rest)
	}
	if err == nil && s.Kind == scsi.OpUnmap {
		s.Ranges, err = decodeRanges(rest)
	}
	if err != nil || !forwardable(s, rest) {
		m.send(&Msg{Type: MsgForwardResult, ID: msg.ID, Result: scsi.Failed})
		return
	}
	if s.Kind == scsi.OpCompareWrite {
		s.Verify = rest
	}
	if s.Kind == scsi.OpRead {
		s.Data = m.cfg.Alloc(s.Len)
	}
	o.Cmd, o.LUN, o.remote, o.front, o.frontN, o.seq, o.sign, o.calm = s, msg.LUN, true, msg.Front, msg.ID, msg.Seq, sign, sign != 0
	s.Medium = o
	m.fwd.in[msg.ID] = o
	m.begin(now, o)
}

// maxForward is the longest read that a front end may ask for: the link carries no more in one
// frame.
const maxForward = 16 << 20

// forwardable judges what came over the wire: kind, range and data must fit together.
func forwardable(s *scsi.Op, rest []byte) bool {
	if s.Off < 0 || s.Len < 0 || s.Off+s.Len < 0 {
		return false
	}
	switch s.Kind {
	case scsi.OpRead:
		return s.Len <= maxForward
	case scsi.OpWrite:
		return int64(len(s.Data)) == s.Len
	case scsi.OpCompareWrite:
		return int64(len(s.Data)) == s.Len && len(rest) == len(s.Data)
	case scsi.OpWriteSame:
		return len(s.Data) > 0
	case scsi.OpFlush, scsi.OpUnmap, scsi.OpMapped:
		return true
	}
	return false
}

// replyRemote sends the result of a forwarded command to its front end.
func (m *Machine) replyRemote(now int64, o *Op) {
	if m.fwd.in[o.frontN] != o {
		return // the front end is gone
	}
	delete(m.fwd.in, o.frontN)
	s := o.Cmd
	s.Result = o.result
	msg := m.cfg.Msg()
	msg.Type, msg.ID, msg.Result, msg.Off, msg.Ended = MsgForwardResult, o.frontN, o.result, s.MiscompareAt, o
	switch {
	case o.result == scsi.ReadError && s.Located:
		msg.Off, msg.Aux = s.BadAt, 1
	case s.Kind == scsi.OpRead && o.result == scsi.OK:
		msg.Data = s.Data
	case s.Kind == scsi.OpMapped:
		msg.Off, msg.Len = s.Extent.Off, s.Extent.Len
		if s.Mapped {
			msg.Aux = 1
		}
	}
	if s.Kind.Writes() {
		// Also that it never started: another frame of it may be on its way, and come when this
		// answer has been given to the host.
		m.fwd.done[o.frontN] = o.result
	}
	m.send(msg)
}

func (m *Machine) onForwardResult(now int64, msg *Msg) {
	o := m.ops[msg.ID]
	if o == nil || o.stage != stForward {
		m.Stats.StaleMessages++
		return
	}
	if msg.Result == scsi.Unavailable && o.seen {
		return // it was mirrored here before the owner left; becoming alone settles it
	}
	delete(m.ops, o.id)
	if msg.Result == scsi.Unavailable && m.phase == Paired && !o.aborted {
		// It never started there: the ownership has moved, or the owner is leaving.
		m.forwardEnds(now, o)
		o.stage = stNew
		m.dispatch(now, o)
		return
	}
	o.Cmd.MiscompareAt = msg.Off
	if msg.Result == scsi.ReadError && msg.Aux == 1 {
		o.Cmd.BadAt, o.Cmd.Located = msg.Off, true
	}
	if o.Cmd.Kind == scsi.OpMapped {
		o.Cmd.Extent, o.Cmd.Mapped = scsi.Range{Off: msg.Off, Len: msg.Len}, msg.Aux == 1
	}
	o.result = msg.Result
	if o.Cmd.Kind == scsi.OpRead && msg.Result == scsi.OK && copy(o.Cmd.Data, msg.Data) != len(o.Cmd.Data) {
		o.result = scsi.Failed // never GOOD with bytes that did not come
	}
	o.Forwarded = true
	m.answer(now, o)
}

func (m *Machine) onForwardAbort(now int64, msg *Msg) {
	if o := m.fwd.in[msg.ID]; o != nil && msg.Front == m.fwd.from {
		m.Abort(now, o)
	}
}

// dropRemote forgets the peer's commands after its front end is gone for good, or the link is:
// those that have not started never will; the others run to their end. While both are members a
// link break keeps them.
func (m *Machine) dropRemote(now int64) {
	if m.phase == Paired {
		return
	}
	for _, id := range sorted(m.fwd.in) {
		o := m.fwd.in[id]
		delete(m.fwd.in, id)
		m.abandon(now, o, scsi.Aborted)
	}
	clear(m.fwd.done)
}
