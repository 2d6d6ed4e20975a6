package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// Signs of life of hosts (R11): what has arrived proves nothing of who sent it.

// stays reports whether the host of a command that was held undecided has not given its session up.
func (m *Machine) stays(now int64, o *Op) bool {
	if o.strayAt == 0 {
		o.strayAt = now
	}
	if o.S.Life.At() >= o.strayAt {
		return true
	}
	m.prove(now, o.S.Life)
	return false
}

// proofMax is how old the last sign of life of an initiator may be when a write of it starts (ns). Hosts wait longer for a
// silent target before they go on over another path; front ends ask those that write more often than that.
const proofMax = 1_000_000_000

// fresh reports whether the initiator has shown signs of life of late, and asks for one if not. Only what changes data needs it.
// A node that is alone asks nobody for a path, so a sign of before it was alone is no sign: the host may have left for the
// other node since, and have gone on there while that was a member.
//
// A sign of life counts from when its ping was sent: the answer may be as late as any byte of the host. So none is ever
// younger than a round trip, and where that takes more than proofMax another proof is needed: that nothing but this nexus
// has started a command on the unit since. A host that has gone on, or had another one go on, did it by such a command.
// Where the other node is the owner, it judges that: the sign goes with the command, by the owner's clock (sign.go).
func (m *Machine) fresh(now int64, o *Op) bool {
	l := o.S.Life
	o.calm, o.sign = false, 0
	if l == nil || !o.S.Kind.Writes() {
		return true
	}
	at := l.At()
	if at < m.signsAt {
		m.prove(now, l)
		return false
	}
	counts := m.phase != Alone || at >= m.since
	switch {
	case counts && now-at <= proofMax:
		return true
	case counts && m.owns(o.unit) && o.unit.starts.calm(o.S, at):
		o.calm = true // and looked at again when it starts
		return true
	case !m.owns(o.unit):
		if o.sign = m.signed(at); o.sign != 0 {
			return true
		}
	}
	m.prove(now, l)
	return false
}

// start is when commands of one nexus last started on a unit. A session that replaces another one of the same name is
// another one here; what came over the link has no Life.
type start struct {
	nexus scsi.NexusID
	life  *scsi.Life
	at    int64
}

// starts is what the owner of a unit remembers of them: the nexus that started one last, and the last one of any other.
type starts struct{ last, other start }

// unknownStarts says that anybody may have started commands until now, at the other node.
func unknownStarts(now int64) starts { return starts{last: start{at: now}} }

func (s *starts) note(now int64, o *scsi.Op) {
	if s.last.nexus != o.Nexus || s.last.life != o.Life {
		s.other = s.last
		s.last = start{nexus: o.Nexus, life: o.Life}
	}
	s.last.at = now
}

// calm reports whether no command of another nexus has started later than a sign of life of this one.
func (s *starts) calm(o *scsi.Op, sign int64) bool {
	x := &s.last
	if x.nexus == o.Nexus && x.life == o.Life {
		x = &s.other
	}
	return x.at <= sign
}

// prove asks for a sign of life, once at a time.
func (m *Machine) prove(now int64, l *scsi.Life) {
	if l == nil {
		return
	}
	if at, ok := m.proving[l]; ok && now-at < int64(m.cfg.HoldMax) {
		return
	}
	m.proving[l] = now
	m.Stats.Proofs++
	m.act(Action{Kind: ActProve, Alive: l})
}

// Proved reports ActProve: a ping that was sent after it has been answered.
func (m *Machine) Proved(now int64, l *scsi.Life) {
	delete(m.proving, l)
	for _, id := range sorted(m.paths) {
		if p := m.paths[id]; p != nil && p.ours && p.life == l {
			m.pathDone(now, p)
		}
	}
	for o := range m.eachOp() {
		if o.stage == stHeld && o.S.Life == l && !o.remote && !o.internal() {
			m.dispatch(now, o)
		}
	}
	m.settle(now)
}

// tickProofs forgets those who never answered.
func (m *Machine) tickProofs(now int64) {
	for l, at := range m.proving {
		if now-at > 4*int64(m.cfg.HoldMax) {
			delete(m.proving, l)
		}
	}
}
