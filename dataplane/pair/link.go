package pair

import (
	"bytes"
	"encoding/json"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// linkState is what this node knows of its peer, over the present link and from it.
type linkState struct {
	up        bool
	number    uint64   // of the link, as this node counts them
	peer      SyncInfo // the last one that came
	known     bool     // it came over this link
	met       Incarnation
	metAt     int64 // since when that is known to be the peer
	agreed    bool  // a two-way handshake under this record
	syncN     uint64
	syncHeard uint64
	syncSaid  SyncInfo // what the last sync said, encoded, and the number under which it was said first
	syncRaw   []byte
	syncNews  uint64
	peerRaw   []byte // the peer's, as it came
	nextSync  int64
}

// leaseState is what heartbeats and their answers give (R3).
type leaseState struct {
	until      int64
	graceUntil int64 // a handshake after a lapse: until then the lapse is forgiven
	graced     bool  // forgiven once since the last answer to a heartbeat
	met        bool  // a two-way handshake under this record, on this link or an older one
	answered   int64 // last heartbeat answer given
	heard      int64 // last heartbeat or answer received
	nextBeat   int64
	beatN      uint64
	beatFrom   uint64 // answers to earlier heartbeats give no lease
	beats      []beat // of the peer (clock.go)
}

// LinkUp reports a new link: both connections are up and the peer has proved who it is. The runtime
// promises that everything received on an older link has been handed over and begun, and that links
// are numbered upwards.
func (m *Machine) LinkUp(now int64, n uint64) {
	m.link.up, m.link.number = true, n
	m.link.known, m.link.agreed = false, false
	m.lease.heard = now
	m.link.syncHeard = 0
	m.link.syncRaw = nil // news to the new link, whatever was said on an older one
	m.lease.beats = m.lease.beats[:0]
	m.sync(now)
	m.settle(now)
}

// LinkDown reports the end of a link. reset reports that the peer's end is known to be closed (as
// opposed to silent), as after the death of its process: then there is no partition to be polite
// about.
func (m *Machine) LinkDown(now int64, n uint64, reset bool) {
	if n != m.link.number || !m.link.up {
		return
	}
	m.link.up, m.link.agreed, m.link.known = false, false, false
	m.resyncStop(now, "the link went down")
	m.scrubDrop(now)
	if m.phase == Paired {
		delay := int64(0)
		if !reset {
			delay = m.politeness()
		}
		m.exclude(now, "link down", false, delay)
	}
	if m.leave.why != "" {
		m.leaveOps(now)
	}
	m.dropRemote(now)
	m.settle(now)
}

// politeness is how much longer a node waits before it excludes when both may be alive (R3): a
// lease if no host is connected to it, for then the other one should stay.
func (m *Machine) politeness() int64 {
	switch {
	case m.hosts.nexuses == 0:
		return int64(m.cfg.Lease)
	case !m.cfg.Preferred:
		return int64(m.cfg.Polite)
	}
	return 0
}

// sync sends this node's phase, record and store to the peer.
func (m *Machine) sync(now int64) {
	if !m.link.up {
		return
	}
	m.link.syncN++
	m.link.nextSync = now + int64(m.cfg.Lease)/2
	info := SyncInfo{Phase: m.phase, Epoch: m.rec.Epoch, Durable: m.saved.epoch, Incarnation: m.cfg.Incarnation,
		Store: m.cfg.Store, Empty: m.cfg.Empty, Index: m.log.index, Untrusted: m.cfg.Untrusted != "" || m.cfg.Misfits != "", Partial: m.cfg.Untrusted == "" && m.cfg.Misfits != "", Old: m.old(), Check: m.saved.state.Check, Lock: m.lockState(),
		Excluding: m.excl.active, Agreed: m.link.agreed, Leaving: m.leave.why != "", LeaveReason: m.leave.why, Failed: m.leave.failed,
		Moves: true, Moved: m.log.moves, Signs: true, Sums: m.cfg.Sums}
	if m.link.syncRaw == nil || info != m.link.syncSaid {
		raw, err := json.Marshal(info)
		if err != nil {
			panic(err) // plain data
		}
		m.link.syncSaid, m.link.syncRaw, m.link.syncNews = info, raw, m.link.syncN
	}
	m.send(&Msg{Type: MsgSync, ID: m.link.syncN, Aux: int64(m.link.syncHeard), Meta: m.link.syncRaw})
}

// Receive takes one message from the link numbered n, in order.
func (m *Machine) Receive(now int64, n uint64, msg *Msg) {
	if n != m.link.number || !m.link.up {
		m.Stats.StaleMessages++
		return
	}
	m.lease.heard = now
	switch msg.Type {
	case MsgHeartbeat:
		m.onBeat(now, msg)
	case MsgHeartbeatAck:
		m.onBeatAck(now, msg)
	case MsgSync:
		m.onSync(now, msg)
	case MsgRequest, MsgReply:
		m.act(Action{Kind: ActRequest, Msg: msg})
	default:
		if !m.current(msg) {
			m.Stats.StaleMessages++
			return
		}
		m.onData(now, msg)
	}
	m.settle(now)
}

// current applies R4: only messages sent under the record that this node is at count. A command
// that was forwarded under an older one has been given up by its host.
func (m *Machine) current(msg *Msg) bool {
	return m.link.known && !m.saved.saving && msg.Epoch == m.rec.Epoch
}

func (m *Machine) onData(now int64, msg *Msg) {
	switch msg.Type {
	case MsgMirror:
		m.onMirror(now, msg)
	case MsgMirrorAck:
		m.onMirrorAck(now, msg)
	case MsgFlush:
		m.onPeerFlush(now, msg)
	case MsgFlushAck:
		m.onFlushAck(now, msg)
	case MsgForward:
		m.onForward(now, msg)
	case MsgForwardResult:
		m.onForwardResult(now, msg)
	case MsgForwardAbort:
		m.onForwardAbort(now, msg)
	case MsgPathSwitch:
		m.onPathSwitch(now, msg)
	case MsgPathSwitchAck:
		m.onPathSwitchAck(now, msg)
	case MsgPropose:
		m.onPropose(now, msg)
	case MsgProposeResult:
		m.onProposeResult(now, msg)
	case MsgAppend:
		m.onAppend(now, msg)
	case MsgAppendAck:
		m.onAppendAck(now, msg)
	case MsgClear:
		m.onClear(now, msg)
	case MsgClearAck:
		m.onClearAck(now, msg)
	case MsgClearDone:
		m.onClearDone(now, msg)
	case MsgFetch:
		m.onFetch(now, msg)
	case MsgFetched:
		m.onFetched(now, msg)
	case MsgMetaInstall, MsgMetaPart, MsgMetaAck, MsgDirty, MsgCopySum, MsgCopyNeed, MsgCopyData, MsgCopyAck, MsgFlushAll, MsgFlushAllAck:
		m.onResync(now, msg)
	}
}

// onBeat answers a heartbeat, which gives the peer a lease: only under one and the same record, and
// never from the start of an exclude on (R3).
func (m *Machine) onBeat(now int64, msg *Msg) {
	if msg.Epoch > m.rec.Epoch && !m.saved.saving {
		m.get(now) // a readmission we have not heard of
	}
	if m.phase != Paired || m.saved.saving || m.excl.active || !m.link.agreed || msg.Epoch != m.rec.Epoch || m.leave.why != "" {
		return
	}
	m.lease.answered = now
	m.noteBeat(now, msg.Aux)
	m.send(&Msg{Type: MsgHeartbeatAck, ID: msg.ID, Aux: msg.Aux})
}

func (m *Machine) onBeatAck(now int64, msg *Msg) {
	if m.phase != Paired || msg.Epoch != m.rec.Epoch || !m.link.agreed || msg.ID < m.lease.beatFrom {
		return
	}
	if until := msg.Aux + int64(m.cfg.Lease); until > m.lease.until && msg.Aux <= now {
		lapsed := now >= m.lease.until
		m.lease.until = until
		m.lease.graced = m.lease.graced && now >= until
		if lapsed && now < until {
			m.pump(now)
		}
	}
}

// onSync takes the peer's standing and decides whether the two agree.
func (m *Machine) onSync(now int64, msg *Msg) {
	in := m.link.peer
	if !m.link.known || !bytes.Equal(msg.Meta, m.link.peerRaw) {
		in = SyncInfo{}
		if err := json.Unmarshal(msg.Meta, &in); err != nil {
			m.Stats.StaleMessages++
			return
		}
		m.link.peerRaw = bytes.Clone(msg.Meta)
	}
	first := !m.link.known || m.link.peer.Incarnation != in.Incarnation
	changed := first || in != m.link.peer
	joins := !first && in.Agreed && !m.link.peer.Agreed
	answerDue := changed || msg.Aux < int64(m.link.syncNews)
	if !first && in.Moved != m.link.peer.Moved {
		m.log.peerAt = now
	}
	m.link.peer, m.link.known = in, true
	if in.Failed {
		m.distrust = in.Store
		if m.faults.by != in.Incarnation {
			m.peerFailed(now)
		}
	}
	if in.Incarnation != m.link.met {
		m.link.met, m.link.metAt = in.Incarnation, now
	}
	m.link.syncHeard = msg.ID
	if first && m.refusal != "" {
		m.resync.retryAt = 0 // it may be of another release now
	}
	if first && in.Incarnation.Nonce != m.fwd.from {
		clear(m.fwd.done)
		m.fwd.from = in.Incarnation.Nonce
		m.log.forget()
	}
	if in.Epoch > m.rec.Epoch && !m.saved.saving {
		m.get(now)
	}
	switch m.phase {
	case Starting:
		m.maybeInit(now)
	case Outside:
		m.outside(now)
	case Paired:
		m.onPairedSync(now, &in, uint64(msg.Aux), joins)
	case Alone:
		if m.joinerReady() {
			m.resyncBegin(now)
		}
	}
	// An answer lets the sender see that both directions work. It ends because an unchanged
	// standing, sent by one that has seen ours, needs none; what counts is the first number under
	// which ours was said, or two that cross would answer each other for ever.
	if answerDue && m.link.up && (changed || m.excl.active || !m.link.agreed) {
		m.sync(now)
	}
}

func (m *Machine) onPairedSync(now int64, in *SyncInfo, echo uint64, joins bool) {
	if m.saved.saving {
		return // the record has moved on; enter draws the conclusions
	}
	pm := m.rec.Member(m.cfg.Self.Peer())
	switch {
	case in.Incarnation != pm.Incarnation || in.Store != pm.Store:
		// A new process. If it speaks for the one of the record, that one is dead (R2b). Else the
		// old process may still serve, and its lease is waited out.
		m.exclude(now, "the peer has restarted", in.speaksFor(pm) || m.hasEnded(pm.Incarnation), 0)
	case in.Leaving:
		m.exclude(now, "the peer steps down: "+in.LeaveReason, true, 0)
	case in.Phase != Paired || in.Epoch != m.rec.Epoch || m.leave.why != "":
	case m.excl.active && (m.excl.firm || m.lease.graced && now >= m.lease.until):
		// Called off once already, and the heartbeats did not come back: it takes its course.
	case m.excl.active:
		// Two-way again: the peer answered something sent after the exclude began, and nothing of
		// ours is on its way to the arbiter.
		if !m.excl.sent && !m.excl.consent && echo >= m.excl.syncFrom && !in.Excluding {
			m.excl = exclusion{}
			m.reason = ""
			m.event("the handshake with the peer succeeded: the peer is not excluded")
			m.agree(now)
		} else if !m.excl.sent && !m.excl.consent && echo >= m.excl.syncFrom {
			// Both wanted to exclude: calling it off needs one of them to move first. It is safe
			// for each alone, since neither has asked the arbiter.
			m.excl = exclusion{}
			m.reason = ""
			m.sync(now)
		}
	case !m.link.agreed && !in.Excluding:
		m.agree(now)
	case m.link.agreed && joins:
		// The peer had not agreed until now and may have ignored what was sent; it is harmless
		// twice, because frames of one link are applied in order and the ranges are still locked.
		m.resend(now)
	}
}

// agree starts the service under this record on this link: what was in flight is sent again (it is
// idempotent under the locks that are still held), and heartbeats are exchanged at once.
func (m *Machine) agree(now int64) {
	m.link.agreed, m.lease.met = true, true
	if now >= m.lease.until && !m.lease.graced {
		// Heartbeats get one lease to bring the lease back. Only one: if the handshake comes
		// through and they do not, the exclude has to take its course.
		m.lease.graced, m.lease.graceUntil = true, now+int64(m.cfg.Lease)
	}
	m.Stats.Relinks++
	m.lease.nextBeat = now
	m.sync(now) // before what is sent again: the peer ignores it until it agrees too
	m.resend(now)
	m.tickLink(now)
	m.pump(now) // the lease may never have lapsed
}

func (m *Machine) resend(now int64) {
	m.relink(now)
	m.logResend(now)
	if m.ckpt.stage == ckPeer && m.ckptHolds() {
		m.ckptSend(now)
	}
}

func (m *Machine) tickLink(now int64) {
	if m.link.up && now >= m.link.nextSync && (m.phase != Paired || !m.link.agreed || m.excl.active) {
		m.sync(now)
	}
	if m.link.up && now-m.lease.heard > 6*int64(m.cfg.Lease) {
		m.lease.heard = now
		m.act(Action{Kind: ActDropLink, Text: "the peer sent nothing for too long"})
	}
	if m.phase != Paired || m.saved.saving {
		return
	}
	if m.link.up && m.link.agreed && !m.excl.active && m.leave.why == "" && now >= m.lease.nextBeat {
		m.lease.nextBeat = now + int64(m.cfg.Heartbeat)
		m.lease.beatN++
		m.send(&Msg{Type: MsgHeartbeat, ID: m.lease.beatN, Aux: now})
	}
	if m.excl.active || m.leave.why != "" {
		return
	}
	if now > m.silentFrom() {
		m.Stats.LeaseLapses++
		if m.peerEnters() && now-m.lease.heard <= int64(m.cfg.Lease) {
			m.peerFailed(now) // else it would be readmitted at once, and hosts would wait for it again
		}
		m.exclude(now, "the peer is silent", false, m.politeness())
		// Silence may be our own: then hosts hear nothing either, and are about to continue
		// elsewhere. A host that answers has not given its session up, and keeps it: a session that
		// is made again costs its host seconds (R11b).
		m.act(Action{Kind: ActProveHosts, Text: "the lease expired while the peer was silent, and the initiator is silent too"})
	}
}

// failAll ends every op of hosts that is not done, with res; started ones end when the store is
// done with them.
func (m *Machine) failAll(now int64, res scsi.Result) {
	for o := range m.eachOp() {
		m.abandon(now, o, res)
	}
}
