package pair

// Who holds a store (R2b). A lock keeps two processes from one state folder, not from a copy of it,
// nor from the disk in another machine: there the lock is another file, or another operating
// system's. So a new process speaks for the one that the record names only if it runs under the
// same boot and holds the lock by the very file by which that one held it. In any other case only
// time helps: the old process may serve for as long as its lease lasts.

// LockState is what a process says of the lock that it holds its store by.
type LockState string

// States of a lock.
const (
	LockUnknown LockState = ""      // nothing is known of a former life, or of this one: release 0.1.0
	LockSame    LockState = "same"  // the file is the one that the process held which last acted on a record
	LockOther   LockState = "other" // it is another one: the folder is a copy, or lies on a disk that was attached again
)

func (m *Machine) lockState() LockState {
	switch {
	case m.cfg.Lock == "" || m.saved.state.Lock == "":
		return LockUnknown
	case m.cfg.Lock == m.saved.state.Lock:
		return LockSame
	}
	return LockOther
}

// speaksFor reports whether the process that says s can only be there because the member of the
// record is dead.
func (s *SyncInfo) speaksFor(member *Member) bool {
	return s.Store == member.Store && s.Incarnation.Boot == member.Incarnation.Boot && s.Lock == LockSame
}

// kept reports whether what the former life of this node had in the page cache is here: the same
// boot, and the same files.
func (m *Machine) kept(me *Member) bool {
	return me.Incarnation.Boot == m.cfg.Incarnation.Boot && m.lockState() != LockOther
}

// succeeds reports whether this process can only be there because the former life of its node is
// over. If not, that one may hold a lease that the former life of the peer has answered: until a
// lease after this node has met the peer's new process.
func (m *Machine) succeeds(me *Member) bool {
	return me.Incarnation.Boot == m.cfg.Incarnation.Boot && m.lockState() == LockSame
}

// replacing reports whether a lone member's former life may not be over: it was one under another
// boot or from another folder, or one that replaced such a one and ended before it had served, or
// before it knew that it was the member.
func (m *Machine) replacing(me *Member) bool {
	if m.saved.state.Replaces || !m.kept(me) {
		return true
	}
	if m.cfg.Acted == nil {
		return false
	}
	was := m.cfg.Acted.Member(m.cfg.Self)
	return was != nil && was.Incarnation.Boot != m.cfg.Incarnation.Boot
}

// leasesOver reports whether no process of the record serves any more. The peer's lease, fed by our
// former life, ran out at the latest T after our start (R3). And if the record is one that took us
// in again, whose answer the peer has not heard, it still serves alone for a part of a lease after
// it has asked: that is counted from when the record was seen.
func (m *Machine) leasesOver(now int64) bool {
	lease, margin := int64(m.cfg.Lease), int64(m.cfg.Margin)
	return now >= m.cfg.Start+2*lease+margin && now >= m.recAt+lease+margin
}
