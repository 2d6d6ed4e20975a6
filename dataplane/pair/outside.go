package pair

import "fmt"

// A node that is no member looks for the way back.

// outside looks for the way back: renewal of a lone member, the choice of a source, or patience.
func (m *Machine) outside(now int64) {
	if m.phase != Outside || m.arb.busy || m.saved.saving || m.leave.why != "" {
		return
	}
	if m.force.stage == forceClaim {
		m.claim(now)
		return
	}
	me := m.rec.Member(m.cfg.Self)
	if me == nil || me.Store != m.cfg.Store {
		if me != nil && !m.rec.Both() {
			m.reason = fmt.Sprintf("the record names this node as the only member, with store %s, but this node has store %s: put back the disk with store %s", me.Store, m.cfg.Store, me.Store)
		}
		return // the member must take us back, with a full copy if the store is new
	}
	if m.cfg.Untrusted != "" {
		m.reason = "the store is not trusted (" + m.cfg.Untrusted + "): it needs a full copy from the peer"
		return
	}
	if m.old() {
		// A member makes an epoch durable before it acts on it; only the last step may be in doubt
		// (R6).
		m.reason = fmt.Sprintf("the store has epoch %d, but the record names this store at epoch %d, so it is an older copy of that store: restore the newest copy, or start this node with an empty state directory to copy everything from the peer", m.cfg.DurableEpoch, m.rec.Epoch)
		return
	}
	if !m.rec.Both() {
		// The lone member has restarted. Alone means write-through, so its store has all that was
		// acknowledged.
		m.renewing = m.replacing(me)
		if m.neverActed() {
			m.yield(now)
			return
		}
		m.claim(now)
		return
	}
	if m.cfg.Misfits != "" {
		m.reason = m.cfg.Misfits
		return
	}
	mineKept := m.kept(me)
	pm := m.rec.Member(m.cfg.Self.Peer())
	// A peer with another store says nothing about the store that the record names: that one is
	// away.
	if m.link.up && m.link.known && m.link.peer.Store == pm.Store {
		if m.link.peer.Incarnation == pm.Incarnation && (m.link.peer.Leaving || m.link.peer.Phase == Fenced) {
			// The member that should take us back will never serve again, and consents to be
			// excluded.
			if mineKept {
				m.claim(now)
			} else {
				m.reason = "this node has rebooted, and the only member is stepping down (" + m.link.peer.LeaveReason + "): restart the other node"
			}
			return
		}
		if m.link.peer.Incarnation == pm.Incarnation && m.link.peer.Phase == Paired {
			return // it excludes us by consent, now that it has seen this incarnation
		}
		if m.link.peer.Phase != Outside {
			return
		}
		// Both restarted (R2b): the source is the one whose page cache survived, else node a; the
		// other waits.
		if why := m.olderThan(&m.link.peer); why != "" {
			m.reason = why
			return
		}
		if !m.link.peer.speaksFor(pm) && !m.hasEnded(pm.Incarnation) && !m.leasesOver(now) || !m.succeeds(me) && now < m.link.metAt+int64(m.cfg.Lease+m.cfg.Margin) {
			return // an earlier process may still serve, there or here
		}
		peerKept := pm.Incarnation.Boot == m.link.peer.Incarnation.Boot && m.link.peer.Lock != LockOther
		peerUnfit := m.link.peer.Untrusted || m.link.peer.Old
		if peerUnfit || mineKept && !peerKept || mineKept == peerKept && m.cfg.Self == A {
			m.event("both nodes restarted; this node is the source (page cache kept: %v)", mineKept)
			m.claim(now)
		}
		return
	}
	// The peer is away. After a reboot this node may lack writes that only the page cache had: it
	// waits (coldStart).
	if !mineKept {
		m.reason = "this node has rebooted and has not connected to its peer since: waiting for the peer to start (coldStart: Wait)"
		return
	}
	// Same boot, same lock: the store is as good as the peer's.
	if m.leasesOver(now) || m.hasEnded(pm.Incarnation) && m.succeeds(me) {
		m.claim(now)
	}
}
