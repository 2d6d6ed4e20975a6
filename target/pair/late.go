package pair

// How long a node may take for what its partner waits for (Dm): a mirrored write or a flush at the partner, an entry of the log at
// either. The owner watches its own commands in tickOps.

// late is the work for the owner that is under way here, the oldest first.
type late struct{ head, tail *Msg }

func (l *late) begin(now int64, msg *Msg) {
	msg.begun, msg.older, msg.newer = now, l.tail, nil
	if l.tail == nil {
		l.head = msg
	} else {
		l.tail.newer = msg
	}
	l.tail = msg
}

func (l *late) end(msg *Msg) {
	if msg.begun == 0 {
		return
	}
	if msg.older == nil {
		l.head = msg.newer
	} else {
		msg.older.newer = msg.newer
	}
	if msg.newer == nil {
		l.tail = msg.older
	} else {
		msg.newer.older = msg.older
	}
	msg.begun, msg.older, msg.newer = 0, nil, nil
}

// hangs tells what this node has not finished within Dm. Its partner sees as much only of what it waits for itself, and nothing once
// it has died: a node that then took over would wait for its own disk for ever (R4, R12).
func (m *Machine) hangs(now int64) string {
	dm := int64(m.cfg.MirrorMax)
	switch w := m.late.head; {
	case w != nil && now-w.begun > dm:
		return "the local store does not finish what the owner has sent: check the disk"
	case m.log.selfAt && now-m.log.since > dm:
		return "the local store does not finish an entry of the log: check the disk"
	}
	return ""
}

// unanswered reports whether the partner has been given an entry of the log and has said nothing of it for Dm. One of
// release 0.1.0 does not say that it is at work, which may be for long: a snapshot is a copy where files share no extents.
func (m *Machine) unanswered(now int64) bool {
	l := &m.log
	return l.cur != nil && !l.peerOK && !l.selfAt && m.chair() && m.mirrors() && m.peer.Moves && now-l.since > int64(m.cfg.MirrorMax)
}

// AppendMoves tells that the work of ActAppend goes on although it takes long: the runtime says so while it copies files or waits for
// commands to end, and not while it makes the entry durable.
func (m *Machine) AppendMoves(now int64) {
	l := &m.log
	if !l.selfAt {
		return
	}
	l.since = now
	if !m.chair() {
		l.moves++
		m.sync(now)
	}
}
