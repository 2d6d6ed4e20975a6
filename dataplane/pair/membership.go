package pair

import (
	"cmp"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// arbiter is the one conversation with the arbiter. want is the record a compare-and-swap tries to
// install; after an unknown outcome doubt stays set until the write is observed or a successor bars
// it (R2).
type arbiter struct {
	busy    bool
	calls   uint64
	want    *Record
	doubt   bool
	retryAt int64
	tries   int
}

// exclusion is the way from {a,b} to {self} (R3).
type exclusion struct {
	active  bool
	why     string
	until   int64 // no compare-and-swap before
	consent bool  // the peer's process is known to have stopped serving
	firm    bool  // no handshake calls it off: the peer answers, and does not do its work
	sent    bool  // a compare-and-swap may have reached the arbiter

	syncFrom uint64 // number of the first sync that was sent since it began
}

const arbiterRetry = 50_000_000 // ns, doubled up to 16 times that

func (m *Machine) get(now int64) {
	if m.arb.busy {
		return
	}
	m.arb.busy = true
	m.arb.calls++
	m.act(Action{Kind: ActArbiterGet})
}

func (m *Machine) cas(now int64, want Record) {
	if m.arb.busy {
		return
	}
	m.arb.busy, m.arb.want = true, &want
	m.arb.calls++
	m.act(Action{Kind: ActArbiterCAS, Record: &want, Version: m.version})
}

// ArbiterDone takes the answer of the call under way. rec and version are set with Got.
func (m *Machine) ArbiterDone(now int64, out Outcome, rec *Record, version string, errText string) {
	a := &m.arb
	a.busy = false
	switch {
	case m.force.stage == forceClaim:
		a.want, a.doubt = nil, false // asked for before the force: casForce reads again
		m.outside(now)
	case m.force.stage == forceRead && out == Got:
		m.forceGot(now, rec, version)
	case m.force.stage == forceRead && out == Missing:
		m.forceGot(now, nil, "")
	case out == Unknown:
		a.doubt = a.want != nil
		a.tries = min(a.tries+1, 4)
		a.retryAt = now + arbiterRetry<<a.tries
		m.reasonArbiter(errText)
	case out == Conflict:
		a.want, a.doubt = nil, false
		m.get(now)
	case out == Missing:
		m.recordMissing(now)
	case a.want != nil && a.doubt && rec.Equal(&m.rec):
		// The write has not landed, but may yet: bar it with a successor of the same content (R2).
		a.tries = 0
		m.version = version
		w := m.rec
		a.doubt = false
		m.cas(now, w)
	default:
		a.want, a.doubt, a.tries, a.retryAt = nil, false, 0, 0
		calls := a.calls
		m.onRecord(now, rec, version)
		if a.calls == calls { // else it has asked again already
			m.confirmed(now)
		}
	}
	m.settle(now)
}

func (m *Machine) reasonArbiter(text string) {
	if m.phase == Starting || m.excl.active || m.resync.stage == rsAdmit {
		m.reason = "the arbiter does not answer (" + text + "): waiting for the arbiter"
	}
}

func (m *Machine) recordMissing(now int64) {
	m.arb.want, m.arb.doubt = nil, false
	if m.saved.epoch > 0 {
		m.fenceRecord(now, fmt.Sprintf("the arbiter has no record, but this node has acted under epoch %d: the record was lost; restore the record, or force the surviving node", m.saved.epoch))
		return
	}
	m.have, m.missing = false, true
	m.version = ""
	m.reason = fmt.Sprintf("waiting for the first connection from node %s: start node %s, or check --link-peer", m.cfg.Self.Peer(), m.cfg.Self.Peer())
	m.maybeInit(now)
}

// maybeInit founds the pair: node a writes the first record once both empty stores have met (R2
// init).
func (m *Machine) maybeInit(now int64) {
	if m.phase != Starting || !m.missing || m.arb.busy || m.saved.epoch > 0 || !m.link.known || !m.link.up || m.cfg.Self != A {
		return
	}
	if !m.cfg.Empty || !m.link.peer.Empty || m.link.peer.Durable > 0 {
		m.fence(now, "the arbiter has no record, but the store of a node holds LUNs, so the record of this pair was lost: restore the record, or start both nodes with empty state directories")
		return
	}
	m.cas(now, Record{Cluster: m.cfg.Cluster, Pair: m.cfg.Pair, Epoch: 1, Generation: 1, Members: []Member{
		{Node: A, Store: m.cfg.Store, Incarnation: m.cfg.Incarnation},
		{Node: B, Store: m.link.peer.Store, Incarnation: m.link.peer.Incarnation},
	}})
}

// onRecord takes a record that was read or written. It is the only place where membership changes.
func (m *Machine) onRecord(now int64, rec *Record, version string) {
	if err := rec.Validate(m.cfg.Cluster, m.cfg.Pair); err != nil {
		m.fence(now, err.Error())
		return
	}
	if rec.Epoch < m.saved.epoch {
		m.fenceRecord(now, fmt.Sprintf("the arbiter's record has epoch %d, but this node has acted under epoch %d: the record was rolled back; restore the record, or force the surviving node", rec.Epoch, m.saved.epoch))
		return
	}
	if k := m.cfg.Known; m.have && rec.Epoch == m.rec.Epoch && !rec.Equal(&m.rec) || k != nil && rec.Epoch == k.Epoch && !rec.Equal(k) {
		m.fenceRecord(now, fmt.Sprintf("the arbiter has another record of epoch %d than before: the record was rolled back and written again; force the surviving node", rec.Epoch))
		return
	}
	if why := m.taken(rec); why != "" {
		m.act(Action{Kind: ActDropHosts, Text: "the record now names another node"})
		m.fenceRecord(now, why)
		return
	}
	old := m.rec
	if !m.have || rec.Epoch != old.Epoch {
		m.recAt = now
	}
	m.rec, m.version, m.have, m.missing = *rec, version, true, false
	if rec.Epoch > m.saved.epoch {
		if m.saved.saving && old.Equal(rec) {
			return
		}
		m.saved.saving = true // nothing is served until the epoch is durable (R2)
		r := m.rec
		me := r.Member(m.cfg.Self)
		// A source has put the copy's number on record before it asked; that holds for a joiner
		// that has restarted since as well.
		if rec.Both() && me != nil && me.Store == m.cfg.Store {
			m.saved.state.Check.Settled = m.saved.state.Check.Count[m.cfg.Self.Peer()]
		}
		if me != nil && me.Incarnation == m.cfg.Incarnation {
			m.saved.state.Lock = m.cfg.Lock
			m.saved.state.Replaces = m.renewing && !rec.Both()
		}
		m.saved.state.Old = m.saved.state.Old || m.old() // before the epoch that would hide it
		m.saved.stateID++
		m.act(Action{Kind: ActSaveEpoch, Record: &r, Durable: me != nil && me.Incarnation == m.cfg.Incarnation, ID: m.saved.stateID, State: m.saved.state})
		return
	}
	m.enter(now)
}

// EpochSaved reports ActSaveEpoch done.
func (m *Machine) EpochSaved(now int64, epoch uint64, ok bool) {
	if !ok {
		m.force.fenced = false // no force continues from here, whatever the record is
		m.fence(now, "the store cannot save the epoch: check the disk, and replace it if this error returns")
		m.settle(now)
		return
	}
	m.saved.epoch = max(m.saved.epoch, epoch)
	if m.saved.epoch >= m.rec.Epoch && m.saved.saving {
		m.saved.saving = false
		m.enter(now)
	}
	m.settle(now)
}

// enter draws the conclusions of m.rec, which is durable.
func (m *Machine) enter(now int64) {
	me := m.rec.Member(m.cfg.Self)
	mine := me != nil && me.Incarnation == m.cfg.Incarnation && me.Store == m.cfg.Store
	if m.phase == Fenced {
		// What was read is no reason to be fenced, unless it takes the service from a lone member:
		// a person decides on what that has acknowledged, for its next life joins (watch.go).
		m.recordBack = m.force.fenced && (!m.wasAlone || mine)
		return
	}
	was := m.phase
	switch {
	case mine && m.rec.Both():
		if was == Paired {
			m.excl.sent = false // a no-op successor: no write of ours to the arbiter can land late; an exclude under way continues
			return
		}
		m.setPhase(now, Paired, "")
		m.link.agreed, m.renewing = false, false
		m.lease.met, m.lease.graced, m.lease.until, m.lease.graceUntil = false, false, 0, 0 // nothing of an earlier record counts
		m.basis()
		m.resyncAdmitted(now)
	case mine:
		if was == Alone {
			m.admitRefused(now)
			return
		}
		if m.leave.why != "" {
			// Our exclude landed after we had begun to leave. The peer is out, this node does not
			// serve: only its next process, or the replacement of its disk, can continue.
			m.fence(now, m.leave.why)
			return
		}
		m.setPhase(now, Alone, "")
		m.becomeAlone(now)
	default:
		if was != Outside {
			m.setPhase(now, Outside, "")
			m.becomeOutside(now)
		}
		m.reason = cmp.Or(m.leave.why, "not a member: waiting for the other node to readmit this node") // who has left waits for nothing in this life
		m.outside(now)
	}
	m.excl = exclusion{}
	m.sync(now)
	m.testified(now) // it may have come before the record did
	m.pump(now)
}

func (m *Machine) setPhase(now int64, p Phase, reason string) {
	if p != m.phase {
		m.event("%s -> %s at epoch %d", m.phase.Text(), p.Text(), m.rec.Epoch)
	}
	m.phase, m.reason, m.since = p, reason, now
	m.cancelWaits()
	m.straggle = m.applying
	m.act(Action{Kind: ActALUA})
}

func (m *Machine) fence(now int64, why string) {
	if m.phase == Fenced && m.reason == why {
		return // it looks at the record again and again
	}
	m.Stats.Fences++
	m.setPhase(now, Fenced, why)
	m.event("fenced: %s", why)
	m.dropFrames(why)
	m.becomeOutside(now)
}

// fenceRecord fences because the record is lost; only force leads out of that (R2).
func (m *Machine) fenceRecord(now int64, why string) {
	m.force.fenced, m.recordBack = true, false
	if m.phase != Fenced {
		m.wasAlone = m.phase == Alone
	}
	m.fence(now, why)
}

// casSelf asks for {self} with this incarnation.
func (m *Machine) casSelf(now int64) {
	m.Stats.Excludes++
	m.cas(now, Record{Cluster: m.cfg.Cluster, Pair: m.cfg.Pair, Epoch: m.rec.Epoch + 1, Generation: m.rec.Generation,
		Members: []Member{m.me()}})
}

// exclude begins to exclude the peer. From here on nothing is served, no heartbeat answered, no
// mirrored write applied, until the outcome is known or a new handshake succeeds (R3).
func (m *Machine) exclude(now int64, why string, consent bool, delay int64) {
	if m.phase != Paired || m.leave.why != "" {
		return
	}
	if m.excl.active {
		if consent && !m.excl.consent {
			m.excl.consent, m.excl.why, m.excl.until = true, why, now
			m.event("excluding the peer without a further wait: %s", why)
		}
		return
	}
	until := now
	if !consent {
		until = max(m.lease.answered, m.cfg.Start, m.since) + int64(m.cfg.Lease+m.cfg.Margin) + delay
	}
	m.excl = exclusion{active: true, why: why, until: until, consent: consent, syncFrom: m.link.syncN + 1}
	m.link.agreed = false
	m.reason = "excluding the peer: " + why
	m.event("excluding the peer: %s", why)
	m.sync(now)
	m.tickMembership(now)
}

// excludeFirm is for a peer that is there and fails: called off, it would begin again at once.
func (m *Machine) excludeFirm(now int64, why string) {
	m.exclude(now, why, false, 0)
	m.excl.firm = m.excl.active
}

func (m *Machine) tickMembership(now int64) {
	if m.Serving(now) || m.phase == Outside || m.phase == Fenced {
		m.decided = now
	}
	if m.arb.busy || m.saved.saving {
		return
	}
	if m.phase == Fenced {
		m.lookAgain(now)
		return
	}
	if m.arb.retryAt != 0 {
		if now >= m.arb.retryAt {
			m.arb.retryAt = 0
			m.get(now) // first learn what became of it
		}
		return
	}
	switch {
	case m.phase == Outside:
		m.outside(now)
	case m.phase == Starting && !m.have:
		m.maybeInit(now)
		if !m.arb.busy && now-m.since > arbiterRetry {
			m.since = now
			m.get(now)
		}
	case m.phase == Alone:
		m.watch(now)
	case m.excl.active && now >= m.excl.until && !m.saved.saving:
		m.excl.sent = true
		m.casSelf(now)
	}
}

// StepDown consents to be excluded: orderly stop, or a store that failed (R12). Nothing is served
// from here on; alone it has no peer to hand over to, and the caller just stops. Over tells when
// the process may end.
func (m *Machine) StepDown(now int64, why string) {
	if m.leave.why != "" {
		return
	}
	m.leave.why = why
	m.leave.at = now
	m.event("stepping down: %s", why)
	m.excl = exclusion{}
	if m.phase == Alone || m.phase == Fenced {
		m.fence(now, why)
	} else {
		m.reason = why
		m.link.agreed = false
		m.leaveOps(now)
		m.sync(now)
	}
	m.settle(now)
}

// leaveOps ends what a leaving node need not finish. What was sent to the peer keeps its buffer as
// long as its frame may still be on the way out and be believed: until the answer, the end of the
// link, or the epoch that excludes us.
func (m *Machine) leaveOps(now int64) {
	for o := range m.eachOp() {
		sent := o.stage == stMirror || o.stage == stForward || o.stage == stRepair && m.ops[o.id] != nil
		if !sent || !m.link.up {
			m.abandon(now, o, scsi.Unavailable)
		}
	}
}
