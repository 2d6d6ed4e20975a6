package pair

// What a node owes its partner, and since when: mirrored writes and flushes that are under way
// here, and an entry of the log at either. The owner watches its own commands (slow.go), and sees
// of the partner only what it waits for itself. It may also be gone: a partner that then took over
// would wait for its own disk for ever (R4, R12).

// owe notes work for the owner that begins here.
func (m *Machine) owe(now int64, msg *Msg) {
	msg.begun = now
	m.owed.push(&msg.owed, msg)
}

// lookOwed judges what is owed. The entry of the log is made durable on the first backing volume.
func (m *Machine) lookOwed(now int64, l *lateness) {
	limit := int64(m.cfg.MirrorMax)
	if w := m.owed.first(); w != nil && m.phase == Paired && now-w.begun > limit {
		if u := m.units[w.LUN]; u != nil && now-m.pacer(u).selfAt > limit {
			l.self = true
			l.at(m, u)
		}
	}
	if m.log.working() && now-m.log.selfAt > limit {
		l.self = true
		l.at(m, nil)
	}
	if m.unanswered(now) {
		l.peer = true
		l.at(m, nil)
	}
}

// unanswered reports whether the partner has been given an entry of the log and has said nothing of
// it for Dm. One of release 0.1.0 does not say that it is at work, which may be for long: a
// snapshot is a copy where files share no extents.
func (m *Machine) unanswered(now int64) bool {
	l := &m.log
	return l.cur != nil && !l.peerOK && m.chair() && m.mirrors() && m.link.peer.Moves && now-l.peerAt > int64(m.cfg.MirrorMax)
}

// AppendMoves reports that the work on an entry makes progress although it takes long: the runtime
// says so while it copies files or waits for commands to end, and not while it makes the entry
// durable.
func (m *Machine) AppendMoves(now int64) {
	l := &m.log
	if !l.working() {
		return
	}
	l.selfAt = now
	if !m.chair() {
		l.moves++
		m.sync(now)
	}
}
