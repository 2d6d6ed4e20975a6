package pair

import "fmt"

// Which store may take part in what (R6): is it the counterpart that the bits are relative to.

// fullReason tells why the joiner's store cannot be taken as the counterpart of our bits, "" if it
// can (R6).
func (m *Machine) fullReason() string {
	p, self, peer := &m.link.peer, m.cfg.Self, m.cfg.Self.Peer()
	mine, its := &m.saved.state.Check, &p.Check
	switch {
	case mine.Peer == "" || p.Store != mine.Peer:
		return "its store was not this store's counterpart before"
	case m.peerDistrusted():
		return "its store had failed"
	case p.Old:
		return "its store is an older copy of itself"
	case its.Peer != m.cfg.Store:
		return "its store was the counterpart of another store"
	case its.Generation != m.rec.Generation || mine.Generation != m.rec.Generation:
		return "the data generation was changed by an administrator"
	case its.Count[self] != mine.Count[self] && (its.Count[self] != mine.Count[self]+1 || its.Settled == its.Count[self]),
		mine.Count[peer] != its.Count[peer] && (mine.Count[peer] != its.Count[peer]+1 || mine.Settled == mine.Count[peer]):
		return "its store is older than the last checkpoint: it was rolled back"
	}
	return ""
}

// olderThan tells whether the peer's store remembers checkpoints that this one does not: then this
// store was rolled back to an older copy of itself, and must not be copied over the younger one
// (R6).
func (m *Machine) olderThan(p *SyncInfo) string {
	self, peer := m.cfg.Self, m.cfg.Self.Peer()
	mine, its := &m.saved.state.Check, &p.Check
	if its.Peer != m.cfg.Store || p.Store != mine.Peer || its.Generation != mine.Generation ||
		its.Count[self] <= mine.Count[self]+1 && its.Settled <= mine.Count[self] && its.Count[peer] <= mine.Count[peer] {
		return ""
	}
	return fmt.Sprintf("this node's store is an older copy of itself (its checkpoints are %v, node %s has %v): restore the newest copy, or force node %s to take over", mine.Count, peer, its.Count, peer)
}
