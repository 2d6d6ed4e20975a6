package pair

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The metadata log (R9): the chair gives every change an index. Both nodes make it durable at the
// same time. The peer lets hosts and callers see it as soon as it is durable there; the chair does
// when the peer has said so; then the proposer hears the outcome. Changes are applied one at a time
// and deterministically.
//
// Crash windows: no host and no caller has seen what only the chair has made durable; if the chair
// dies then, the peer continues without it, and the chair is given the peer's metadata when it
// comes back. The chair has what the peer has shown, at least as an entry under way, and continues
// with it alone.

// Proposal is a change on its way. Nonce and ID tag it, so that its proposer recognises it in the
// log.
type Proposal struct {
	Nonce, ID uint64
	Entry     []byte

	applied bool
	result  scsi.Result
	outcome []byte
}

type proposeDone struct {
	result  scsi.Result
	outcome []byte
}

type logState struct {
	index  uint64
	nextID uint64
	open   map[uint64]*Proposal // of this node's runtime
	queue  []*Proposal          // at the chair
	cur    *Proposal            // being appended
	peerOK bool                 // cur is durable and shown on the peer, or there is none
	stage  logStage             // of cur here
	selfAt int64                // when the work of that stage began
	peerAt int64                // when the peer was given cur, or last said that it is at work
	moves  uint64               // counts what the work here said of its progress
	done   map[uint64]proposeDone
	last   proposeDone // of the newest index, for a chair that asks again
}

type logStage uint8

const (
	logIdle    logStage = iota
	logStoring          // ActAppend is under way
	logStored           // durable here; waits for the peer
	logShowing          // ActShow is under way
)

// working reports whether the runtime is at work on an entry.
func (l *logState) working() bool { return l.stage == logStoring || l.stage == logShowing }

func (l *logState) forget() { clear(l.done) }

// chair reports whether this node serialises the log.
func (m *Machine) chair() bool { return m.have && m.rec.Chair() == m.cfg.Self }

// logBarred: no new entry while a joiner is given the whole metadata or is about to be admitted at
// equal indexes.
func (m *Machine) logBarred() bool {
	return m.resync.stage == rsInstall || m.resync.stage == rsFlush || m.resync.stage == rsRecord || m.resync.stage == rsAdmit
}

// Propose submits a change; ActProposed with the returned number reports its end. Unavailable means
// that this node cannot tell any more; asking again must be harmless, which idempotent changes and
// tags take care of.
func (m *Machine) Propose(now int64, entry []byte) uint64 {
	m.log.nextID++
	p := &Proposal{Nonce: m.cfg.Incarnation.Nonce, ID: m.log.nextID, Entry: entry}
	m.log.open[p.ID] = p
	if m.gone() {
		m.proposed(p, scsi.Unavailable, nil)
	} else if m.phase == Alone || m.phase == Paired && m.chair() {
		m.log.queue = append(m.log.queue, p)
		m.logNext(now)
	} else {
		m.sendPropose(p)
	}
	m.settle(now)
	return p.ID
}

func (m *Machine) sendPropose(p *Proposal) {
	m.send(&Msg{Type: MsgPropose, ID: p.ID, Front: p.Nonce, Aux: int64(m.lowestProposal()), Meta: p.Entry})
}

func (m *Machine) lowestProposal() uint64 {
	low := m.log.nextID
	for id := range m.log.open {
		low = min(low, id)
	}
	return low
}

func (m *Machine) proposed(p *Proposal, res scsi.Result, outcome []byte) {
	delete(m.log.open, p.ID)
	m.act(Action{Kind: ActProposed, ID: p.ID, Result: res, Meta: outcome})
}

func (m *Machine) onPropose(now int64, msg *Msg) {
	l := &m.log
	for id := range l.done {
		if id < uint64(msg.Aux) {
			delete(l.done, id)
		}
	}
	if d, ok := l.done[msg.ID]; ok {
		m.send(&Msg{Type: MsgProposeResult, ID: msg.ID, Result: d.result, Meta: d.outcome})
		return
	}
	same := func(p *Proposal) bool { return p != nil && p.Nonce == msg.Front && p.ID == msg.ID }
	if same(l.cur) || slices.ContainsFunc(l.queue, same) {
		return
	}
	if !m.chair() {
		m.send(&Msg{Type: MsgProposeResult, ID: msg.ID, Result: scsi.Unavailable})
		return
	}
	l.queue = append(l.queue, &Proposal{Nonce: msg.Front, ID: msg.ID, Entry: msg.Meta})
	m.logNext(now)
}

// logNext begins with the next entry, at both nodes.
func (m *Machine) logNext(now int64) {
	l := &m.log
	if l.cur == nil && l.stage == logIdle && m.phase == Alone && m.joinerReady() {
		m.resyncBegin(now) // between two entries; on a slow disk there may always be a next one
	}
	m.flushJoiner()
	if l.cur != nil || l.stage != logIdle || len(l.queue) == 0 || !m.Serving(now) || !m.chair() || m.logBarred() {
		return
	}
	l.cur = l.queue[0]
	l.queue = l.queue[1:]
	l.cur.result, l.cur.outcome = scsi.OK, nil
	l.peerOK, l.peerAt = !m.mirrors(), now
	if !l.peerOK {
		m.sendAppend()
	}
	m.logStore(now, false)
}

func (m *Machine) sendAppend() {
	p := m.log.cur
	m.send(&Msg{Type: MsgAppend, Aux: int64(m.log.index + 1), Front: p.Nonce, FrontN: p.ID, Meta: p.Entry})
}

func (m *Machine) logStore(now int64, joining bool) {
	l := &m.log
	l.stage, l.selfAt = logStoring, now
	m.act(Action{Kind: ActAppend, Index: l.index + 1, Meta: l.cur.Entry, Joining: joining})
}

// logShow lets it be seen here, once it is durable here and the peer has it.
func (m *Machine) logShow(now int64) {
	l := &m.log
	if l.stage != logStored || l.cur != nil && !l.peerOK {
		return
	}
	l.stage, l.selfAt = logShowing, now
	m.act(Action{Kind: ActShow, Index: l.index + 1})
}

// logPeerless stops waiting for a peer that is not mirrored to any more. It may have applied the
// entry; it will be given ours.
func (m *Machine) logPeerless(now int64) {
	if l := &m.log; l.cur != nil && !l.peerOK {
		l.peerOK = true
		m.logShow(now)
	}
}

func (m *Machine) onAppend(now int64, msg *Msg) {
	l := &m.log
	index := uint64(msg.Aux)
	member := m.phase == Paired && m.link.agreed && !m.excl.active && m.leave.why == ""
	if !member && !m.resync.joined {
		m.Stats.StaleMessages++
		return
	}
	switch {
	case index == l.index && l.stage == logIdle:
		m.send(&Msg{Type: MsgAppendAck, Aux: msg.Aux, Result: l.last.result, Meta: l.last.outcome})
	case index == l.index+1 && l.stage == logIdle:
		l.cur, l.peerOK = &Proposal{Nonce: msg.Front, ID: msg.FrontN, Entry: msg.Meta}, true
		m.logStore(now, !member)
	default:
		m.Stats.StaleMessages++
	}
}

func (m *Machine) onAppendAck(now int64, msg *Msg) {
	l := &m.log
	if l.cur == nil || l.peerOK || uint64(msg.Aux) != l.index+1 || !m.chair() {
		return
	}
	l.peerOK = true
	if msg.Result != scsi.OK {
		l.cur.result, l.cur.outcome = msg.Result, msg.Meta
	}
	m.logShow(now)
}

// Appended reports ActAppend: the entry is durable here.
func (m *Machine) Appended(now int64, index uint64) {
	if l := &m.log; l.stage == logStoring && index == l.index+1 {
		l.stage = logStored
		m.logShow(now)
	}
	m.settle(now)
}

// Shown reports ActShow: hosts and callers see the entry here. units is the table after it when the
// entry changed it, else nil. A result other than OK is an outcome of the change, not of the log: a
// log that cannot be written is reported with StoreFailed.
func (m *Machine) Shown(now int64, index uint64, res scsi.Result, outcome []byte, units []UnitInfo) {
	l := &m.log
	l.stage = logIdle
	l.index = index
	p := l.cur
	l.cur = nil
	if p != nil {
		if p.result == scsi.OK {
			p.result, p.outcome = res, outcome
		}
		l.last = proposeDone{p.result, p.outcome}
		m.ended(now, p)
	}
	if units != nil {
		m.SetUnits(now, units)
	}
	m.logNext(now)
	m.settle(now)
}

// ended tells the proposer, or the code that will.
func (m *Machine) ended(now int64, p *Proposal) {
	l := &m.log
	leads := m.chair() && (m.phase == Paired || m.phase == Alone)
	mine := p.Nonce == m.cfg.Incarnation.Nonce
	switch {
	case leads && mine:
		if q := l.open[p.ID]; q != nil {
			m.proposed(q, p.result, p.outcome)
		}
	case leads:
		l.done[p.ID] = proposeDone{p.result, p.outcome}
		m.send(&Msg{Type: MsgProposeResult, ID: p.ID, Result: p.result, Meta: p.outcome})
	default:
		if q := l.open[p.ID]; q != nil && mine {
			q.applied, q.result, q.outcome = true, p.result, p.outcome
		}
		m.send(&Msg{Type: MsgAppendAck, Aux: int64(l.index), Result: p.result, Meta: p.outcome})
	}
}

func (m *Machine) onProposeResult(now int64, msg *Msg) {
	p := m.log.open[msg.ID]
	if p == nil {
		return
	}
	m.proposed(p, msg.Result, msg.Meta)
}

// logResend asks again after a break of the link.
func (m *Machine) logResend(now int64) {
	l := &m.log
	if m.chair() {
		if l.cur != nil && !l.peerOK {
			m.sendAppend()
		}
		m.logNext(now)
		return
	}
	for _, id := range sorted(m.log.open) {
		m.sendPropose(l.open[id])
	}
}

// logAlone takes the chair, or continues without the peer.
func (m *Machine) logAlone(now int64) {
	l := &m.log
	l.forget()
	l.queue = slices.DeleteFunc(l.queue, func(p *Proposal) bool { return p.Nonce != m.cfg.Incarnation.Nonce })
	m.logPeerless(now)
	queued := func(id uint64) bool {
		return l.cur != nil && l.cur.ID == id && l.cur.Nonce == m.cfg.Incarnation.Nonce ||
			slices.ContainsFunc(l.queue, func(p *Proposal) bool { return p.ID == id })
	}
	for _, id := range sorted(m.log.open) {
		p := l.open[id]
		switch {
		case p.applied:
			m.proposed(p, p.result, p.outcome)
		case !queued(id):
			l.queue = append(l.queue, p)
		}
	}
	m.logNext(now)
}

// logFail ends every proposal of a node that is out.
func (m *Machine) logFail(now int64) {
	l := &m.log
	l.queue = nil
	// The peer's answer is not needed any more. What is durable here, or will be, is shown, so that
	// the tables are those of the metadata.
	l.peerOK = true
	if !l.working() {
		l.cur = nil
	}
	m.logShow(now)
	l.forget()
	for _, id := range sorted(m.log.open) {
		m.proposed(l.open[id], scsi.Unavailable, nil)
	}
}
