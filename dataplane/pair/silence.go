package pair

import "time"

// silentFrom is the moment after which the peer is silent: for a lease nothing has come from it, or
// it has answered none of the heartbeats. A node that has just entered gets a whole lease to meet
// its peer, and Dm as long as it hears that its peer is about to enter.
func (m *Machine) silentFrom() int64 {
	lease := int64(m.cfg.Lease)
	quiet := max(m.lease.heard, m.since) + lease
	lapsed := max(m.lease.until, m.lease.graceUntil, m.since+lease)
	if m.peerEnters() {
		lapsed = max(lapsed, m.since+int64(m.cfg.MirrorMax))
	}
	return min(quiet, lapsed)
}

// peerEnters reports that the peer is the one that the record names, and has not acted on the
// record yet: it reads the record, or makes it durable, which on a busy disk takes longer than a
// lease. To exclude it for that would begin its readmission again, which would end in the same way.
func (m *Machine) peerEnters() bool {
	in, pm := &m.link.peer, m.rec.Member(m.cfg.Self.Peer())
	return m.phase == Paired && pm != nil && !m.lease.met && m.link.up && m.link.known && in.Incarnation == pm.Incarnation && in.Store == pm.Store &&
		!in.Leaving && in.Phase != Fenced && in.Durable < m.rec.Epoch
}

// Deadline is when a member next acts because its peer is silent: it begins to exclude the peer, or
// asks the arbiter; 0: nothing of that is due. Each of them is a part of the pause of hosts, so a
// runtime ticks at that moment, and not at the next turn of its loop only.
func (m *Machine) Deadline() int64 {
	switch {
	case m.phase != Paired || m.saved.saving || m.leave.why != "":
		return 0
	case !m.excl.active:
		return m.silentFrom() + 1
	case m.arb.busy:
		return 0
	case m.arb.retryAt != 0:
		return m.arb.retryAt
	}
	return m.excl.until
}

// Quiet is for how long a member has heard nothing from its peer.
func (m *Machine) Quiet(now int64) time.Duration {
	if m.phase != Paired || m.leave.why != "" {
		return 0
	}
	return time.Duration(now - max(m.lease.heard, m.since))
}
