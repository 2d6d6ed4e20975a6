package pair

import "slices"

// Testimony of the peer's supervisor (R2b). The supervisor makes the nonce of each incarnation,
// gives it to one process and reaps that process. A process that has been reaped executes no
// status, heartbeat, mirrored write or store operation any more, and what it had sent is a delay of
// the network, which R1, R4, R5 and R11 allow for. So a testimony never becomes wrong: it may be
// late or repeated, and no clock is in it. It concerns the incarnation that it names and no other
// one: the node may run again, and serve.
//
// No testimony are: the end of a connection, a process that is not found, a heartbeat that is
// missing, a lock that is free.

// maxEnded bounds how many incarnations a node remembers to have ended, the latest ones. For a
// record that names an older one the lease is waited for.
const maxEnded = 64

// PeerEnded takes a testimony of the peer's supervisor: these processes of its node have been
// reaped.
func (m *Machine) PeerEnded(now int64, list []Incarnation) {
	for _, inc := range list {
		if !m.hasEnded(inc) {
			m.peerEnded = append(m.peerEnded, inc)
		}
	}
	if n := len(m.peerEnded) - maxEnded; n > 0 {
		m.peerEnded = slices.Delete(m.peerEnded, 0, n)
	}
	m.testified(now)
	m.outside(now)
	m.settle(now)
}

// hasEnded reports whether the peer's supervisor has reaped that process.
func (m *Machine) hasEnded(inc Incarnation) bool { return slices.Contains(m.peerEnded, inc) }

// testified excludes the peer at once if the record names a process that has ended.
func (m *Machine) testified(now int64) {
	if m.phase != Paired || m.saved.saving || m.excl.consent || !m.hasEnded(m.rec.Member(m.cfg.Self.Peer()).Incarnation) {
		return
	}
	m.exclude(now, "its supervisor has reported that the peer's process has ended", true, 0)
	if m.excl.consent {
		m.Stats.Testified++
		m.tickMembership(now)
	}
}
