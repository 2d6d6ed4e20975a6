package pair

import (
	"errors"
	"fmt"
)

// The ways in which a node that is no member takes the record: it was the lone member, both have
// restarted and it is the source, or an administrator says so.

// claimState is how far an outsider's claim is.
type claimState uint8

const (
	claimNone claimState = iota
	claimFlushing
	claimRecording
	claimReady
)

// claim asks for {self} from outside, once everything that the store holds is durable: what was
// acknowledged may be in the page cache only, and until the record names this node the other one's
// copy counts as well. No host is served meanwhile, so the flush costs nothing but its time.
func (m *Machine) claim(now int64) {
	switch m.claimed {
	case claimNone:
		if m.applying > 0 || m.storeOps > 0 || m.installing {
			return // what lands after the flush would not be in it; the next tick looks again
		}
		m.claimed = claimFlushing
		m.flushSelf()
	case claimReady:
		if m.force.stage == forceClaim {
			m.casForce(now)
			return
		}
		m.casSelf(now)
	}
}

// neverActed reports whether this node asked for the record that names it alone, lost power, and so
// never served under it. What was acknowledged under the record before may have been in its page
// cache only, and in that of the peer, which has been excluded for nothing.
func (m *Machine) neverActed() bool {
	me, acted := m.rec.Member(m.cfg.Self), m.cfg.Acted
	return me.Incarnation.Boot != m.cfg.Incarnation.Boot && acted != nil && acted.Both() && acted.Epoch+1 == m.rec.Epoch
}

// yield gives the record to the peer, if the peer has kept its page cache since it was a member:
// [self]@e → [peer]@e+1. As after any reboot this node decides nothing before it has met the peer
// (R2b).
func (m *Machine) yield(now int64) {
	pm := m.cfg.Acted.Member(m.cfg.Self.Peer())
	p := &m.link.peer
	switch {
	case m.link.up && m.link.known && p.Store != pm.Store:
		m.claim(now) // the peer has another disk: what it kept is gone as well
	case !m.link.up || !m.link.known:
		m.reason = "this node lost power right after it excluded its peer, and the peer may hold writes that this node lost: waiting for the peer to start (coldStart: Wait)"
	case p.Phase != Outside || p.Durable > m.rec.Epoch:
	case p.Incarnation.Boot != pm.Incarnation.Boot || p.Untrusted || m.claimed != claimNone:
		m.claim(now)
	default:
		m.Stats.Yields++
		m.event("giving the record to node %s, which kept the writes that this node may have lost", m.cfg.Self.Peer())
		m.cas(now, Record{Cluster: m.cfg.Cluster, Pair: m.cfg.Pair, Epoch: m.rec.Epoch + 1, Generation: m.rec.Generation,
			Members: []Member{{Node: m.cfg.Self.Peer(), Store: p.Store, Incarnation: p.Incarnation}}})
	}
}

// flushSelf makes everything durable here; SelfFlushed ends it.
func (m *Machine) flushSelf() {
	m.flushes++
	m.act(Action{Kind: ActFlushAll})
}

// claimFlushed continues the claim after the flush. If acknowledged writes may be gone, that is put
// on record first: the record that names this boot would hide it from this node's next life (R8).
func (m *Machine) claimFlushed(now int64) {
	forced := m.force.stage == forceClaim
	if lost := m.mayHaveLost(); lost && !m.saved.state.Lost || forced && !m.saved.state.LostAll {
		m.saved.state.Lost, m.saved.state.LostAll = true, m.saved.state.LostAll || forced
		m.claimed = claimRecording
		m.saveState(thenClaim)
		return
	}
	m.claimed = claimReady
	m.outside(now)
}

func (m *Machine) claimSaved(now int64) {
	if m.claimed == claimRecording {
		m.claimed = claimReady
		m.outside(now)
	}
}

// mayHaveLost reports whether acknowledged writes that were only in page caches may be gone (R8):
// the operating system has restarted since this node was a member, and then the peer's cache was
// lost too, or this node had become alone and had not flushed everything yet.
func (m *Machine) mayHaveLost() bool {
	me := m.rec.Member(m.cfg.Self)
	if me == nil || me.Incarnation.Boot == m.cfg.Incarnation.Boot {
		return false
	}
	return (m.rec.Both() || m.saved.state.Flushed < m.rec.Epoch) && m.HotRegions() > 0
}

// markLost has the runtime report the loss to hosts before this node serves any of them: a LUN with
// bits set may have lost writes, one without has none that were not durable.
func (m *Machine) markLost() {
	m.marking = m.saved.state.Lost
	if !m.marking {
		return
	}
	m.Stats.Lost++
	var ids []LUNID
	for _, u := range m.sortedUnits() {
		if m.saved.state.LostAll || !u.intents.hot.Empty() {
			ids = append(ids, u.id)
		}
	}
	m.event("acknowledged writes that were not flushed may be lost: %d LUNs answer MEDIUM ERROR until they are published again", len(ids))
	m.act(Action{Kind: ActMarkLost, Units: ids})
	if m.saved.state.LostAll {
		m.act(Action{Kind: ActDropHosts, Text: "this node now serves another generation of the data"})
	}
}

// LostMarked reports ActMarkLost: the entry is applied. The runtime tries again until it is, or
// this node is no member.
func (m *Machine) LostMarked(now int64) {
	if !m.marking || m.phase != Alone {
		return
	}
	m.marking, m.saved.state.Lost, m.saved.state.LostAll = false, false, false
	m.saveState(thenNothing)
	m.pump(now)
	m.settle(now)
}

// old reports whether the store is an older copy of itself by its epoch: a member makes an epoch
// durable before it acts on it, so only the last step may be in doubt (R6).
func (m *Machine) old() bool {
	me := m.rec.Member(m.cfg.Self)
	return m.saved.state.Old || m.have && me != nil && me.Store == m.cfg.Store && me.Incarnation != m.cfg.Incarnation && m.cfg.DurableEpoch+1 < m.rec.Epoch
}

// me is this node as a member.
func (m *Machine) me() Member {
	return Member{Node: m.cfg.Self, Store: m.cfg.Store, Incarnation: m.cfg.Incarnation}
}

// basis starts the checkpoints of a pair that was founded now: two empty stores are alike.
func (m *Machine) basis() {
	pm := m.rec.Member(m.cfg.Self.Peer())
	if m.saved.state.Check.Peer == "" && m.cfg.Empty && m.rec.Epoch == 1 {
		m.saved.state.Check = Checkpoint{Peer: pm.Store, Generation: m.rec.Generation}
		m.saveState(thenNothing)
	}
}

// forceState is an administrator's command to take over without the lone member (R2 force).
type forceState struct {
	stage  forceStage
	fenced bool // the record itself is lost: missing, rolled back or forked
}

type forceStage uint8

const (
	forceNone  forceStage = iota
	forceClaim            // the claim is under way
	forceRead             // the arbiter's record is read for its version only
)

// Errors of Force.
var (
	ErrForceState = errors.New("force is possible only on a node that waits for a lost member or a lost record")
	ErrForceEpoch = errors.New("the given epoch is not this node's epoch: read its status again")
	ErrForceAlive = errors.New("the other node is running and can serve")
)

// forceEpoch is what Force has to be given, 0 when it would be refused.
func (m *Machine) forceEpoch() uint64 {
	switch {
	case m.leave.why != "" || m.saved.saving:
		return 0
	case m.phase == Fenced && m.force.fenced, m.phase == Outside && m.have:
		return max(m.saved.epoch, m.rec.Epoch)
	}
	return 0
}

// Force makes this node the only member although the record says otherwise: the lone member is
// lost, or the record is, and an administrator accepts that writes acknowledged there may be lost.
// epoch is what the status shows, so that no administrator decides on an old status. It begins a
// new data generation: the other store needs a full copy to come back, and every LUN answers MEDIUM
// ERROR to the hosts that used it before until it is published again (R8).
func (m *Machine) Force(now int64, epoch uint64) error {
	switch at := m.forceEpoch(); {
	case at == 0 || m.force.stage != forceNone:
		return fmt.Errorf("%w; this node is %s: %s", ErrForceState, m.phase.Text(), m.reason)
	case epoch != at:
		return fmt.Errorf("%w: the epoch is %d, not %d", ErrForceEpoch, at, epoch)
	case m.link.up && m.link.known && (m.link.peer.Phase == Alone || m.link.peer.Phase == Paired):
		return fmt.Errorf("%w: node %s is %s; to force this node, stop node %s first", ErrForceAlive, m.cfg.Self.Peer(), m.link.peer.Phase.Text(), m.cfg.Self.Peer())
	}
	m.event("forced by an administrator at epoch %d", epoch)
	m.Stats.Forced++
	if m.phase == Fenced {
		m.setPhase(now, Outside, "taking over by force")
	}
	m.force.stage, m.claimed = forceClaim, claimNone
	m.claim(now)
	m.settle(now)
	return nil
}

// forceEnds gives a command up that has not asked for its record yet: the node that it was to
// replace is alive and copies to this one. Carried out later, in whatever phase this node has then,
// it would be no decision of an administrator.
func (m *Machine) forceEnds() {
	if m.force.stage == forceNone {
		return
	}
	m.event("the force is cancelled: node %s is running and copies its data to this node", m.cfg.Self.Peer())
	m.force, m.claimed = forceState{}, claimNone
}

// casForce writes the record of a new generation over whatever is there: its version is read first.
func (m *Machine) casForce(now int64) {
	if m.arb.busy {
		return
	}
	m.force.stage = forceRead
	m.arb.want, m.arb.doubt = nil, false
	m.get(now)
}

// forceGot has the version: nothing else of what was read counts.
func (m *Machine) forceGot(now int64, rec *Record, version string) {
	m.force = forceState{}
	gen := max(m.rec.Generation, m.saved.state.Check.Generation, 1) + 1
	epoch := max(m.saved.epoch, m.rec.Epoch)
	if rec != nil {
		gen, epoch = max(gen, rec.Generation+1), max(epoch, rec.Epoch)
	}
	m.version = version
	m.cas(now, Record{Cluster: m.cfg.Cluster, Pair: m.cfg.Pair, Epoch: epoch + 1, Generation: gen, Members: []Member{m.me()}})
}
