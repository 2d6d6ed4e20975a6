package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// Late commands: R11 (a) and (b). No command takes effect after its host has given it up and
// continued. (c) is abort.go with the log; (d), duplicates of forwarded commands, is forward.go.

// verdict is what R11 says of a command that has not started.
type verdict uint8

const (
	mayStart verdict = iota
	mustWait         // for the peer, or for a sign of life of the host
	tooLate          // its host may have continued: BUSY, which the host repeats
)

// judge applies R11a before a command is executed or forwarded. What this node has to ask for is
// asked for here.
func (m *Machine) judge(now int64, o *Op) verdict {
	switch {
	case o.stray && !m.pathKnown(o) && o.Cmd.Liveness == nil:
		return tooLate // its host may have continued over the other path meanwhile
	case o.stray && !m.pathKnown(o) && !m.stays(now, o):
		return mustWait
	case !o.remote && !o.internal() && !m.pathHere(now, o):
		return mustWait // asked for first, so that the other node does not take the path for its own meanwhile
	case !o.remote && !o.internal() && !m.fresh(now, o):
		return mustWait
	case m.overwritten(now, o):
		m.Stats.Overwritten++
		m.prove(now, o.Cmd.Liveness)
		return mustWait
	case o.remote && m.owns(o.unit) && m.overtaken(o):
		return tooLate // its host is asked for another sign where it is
	}
	return mayStart
}

// overtaken reports whether a command of another nexus has started since the sign of life that o
// was admitted for: its host may have continued.
func (m *Machine) overtaken(o *Op) bool { return o.calm && !o.unit.starts.calm(o.Cmd, o.signedAt()) }

// aged reports whether a write is too old to start (R11b).
func (m *Machine) aged(now int64, o *Op) bool {
	return !o.internal() && o.Cmd.Kind.Writes() && now-o.Cmd.Arrived > int64(m.cfg.AgeMax)
}

// pathHere reports whether the host's path for this LUN is through this node, and asks for the
// switch if not.
func (m *Machine) pathHere(now int64, o *Op) bool {
	if m.phase == Alone || m.pathKnown(o) {
		return true // alone the other node is no member
	}
	k := pathKey{o.LUN, o.Cmd.Nexus.Initiator}
	for _, p := range m.hosts.asks {
		if p.ours && p.key == k && p.nexus == o.Cmd.Nexus && p.life == o.Cmd.Liveness {
			return false
		}
	}
	m.nextID++
	m.hosts.asks[m.nextID] = &pathAsk{key: k, ours: true, nexus: o.Cmd.Nexus, life: o.Cmd.Liveness, since: now}
	m.send(&Msg{Type: MsgPathSwitch, ID: m.nextID, LUN: k.lun, Meta: []byte(k.host)})
	return false
}

// stays reports whether the host of a command that was held undecided has not given its session up.
func (m *Machine) stays(now int64, o *Op) bool {
	if o.strayAt == 0 {
		o.strayAt = now
	}
	if o.Cmd.Liveness.At() >= o.strayAt {
		return true
	}
	m.prove(now, o.Cmd.Liveness)
	return false
}

// proofMax is how old the last sign of life of an initiator may be when a write of it starts (ns).
// Hosts wait longer for a silent target before they continue over another path; front ends ask
// those that write more often than that.
const proofMax = 1_000_000_000

// fresh reports whether the initiator has shown a sign of life recently, and asks for one if not.
// Only what changes data needs it. A node that is alone has no peer to ask for a path, so a sign of
// life from before it was alone does not count: the host may have left for the other node since,
// and have continued there while that was a member.
//
// A sign of life counts from when its ping was sent: the answer may be as late as any byte of the
// host. So none is ever younger than a round trip, and where that takes more than proofMax another
// proof is needed: that nothing but this nexus has started a command on the unit since. A host that
// has continued elsewhere, or let another host continue, did it by such a command. Where the other
// node is the owner, it judges that: the sign goes with the command, by the owner's clock (signed).
func (m *Machine) fresh(now int64, o *Op) bool {
	l := o.Cmd.Liveness
	o.calm, o.sign = false, 0
	if l == nil || !o.Cmd.Kind.Writes() {
		return true
	}
	at := l.At()
	if at < m.clock.signsAt {
		m.prove(now, l)
		return false
	}
	counts := m.phase != Alone || at >= m.since
	switch {
	case counts && now-at <= proofMax:
		return true
	case counts && m.owns(o.unit) && o.unit.starts.calm(o.Cmd, at):
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

// start is when commands of one nexus last started on a unit. A session that replaces another one
// of the same name is another one here; what came over the link has no Liveness.
type start struct {
	nexus scsi.NexusID
	life  *scsi.Liveness
	at    int64
}

// starts is what the owner of a unit remembers of them: the nexus that started one last, and the
// last one of any other.
type starts struct{ last, other start }

// unknownStarts says that any nexus may have started commands until now, at the other node.
func unknownStarts(now int64) starts { return starts{last: start{at: now}} }

func (s *starts) note(now int64, o *scsi.Op) {
	if s.last.nexus != o.Nexus || s.last.life != o.Liveness {
		s.other = s.last
		s.last = start{nexus: o.Nexus, life: o.Liveness}
	}
	s.last.at = now
}

// calm reports whether no command of another nexus has started later than a sign of life of this
// one.
func (s *starts) calm(o *scsi.Op, sign int64) bool {
	x := &s.last
	if x.nexus == o.Nexus && x.life == o.Liveness {
		x = &s.other
	}
	return x.at <= sign
}

// prove asks for a sign of life, once at a time.
func (m *Machine) prove(now int64, l *scsi.Liveness) {
	if l == nil {
		return
	}
	if at, ok := m.hosts.proving[l]; ok && now-at < int64(m.cfg.HoldMax) {
		return
	}
	m.hosts.proving[l] = now
	m.Stats.Proofs++
	m.act(Action{Kind: ActProve, Alive: l})
}

// Proved reports ActProve: a ping that was sent after it has been answered.
func (m *Machine) Proved(now int64, l *scsi.Liveness) {
	delete(m.hosts.proving, l)
	for _, id := range sorted(m.hosts.asks) {
		if p := m.hosts.asks[id]; p != nil && p.ours && p.life == l {
			m.pathDone(now, p)
		}
	}
	for o := range m.eachOp() {
		if o.stage == stHeld && o.Cmd.Liveness == l && !o.remote && !o.internal() {
			m.dispatch(now, o)
		}
	}
	m.settle(now)
}

// tickProofs forgets those who never answered.
func (m *Machine) tickProofs(now int64) {
	for l, at := range m.hosts.proving {
		if now-at > 4*int64(m.cfg.HoldMax) {
			delete(m.hosts.proving, l)
		}
	}
}

// signedAt is the sign of life that a command was admitted for, by the clock here.
func (o *Op) signedAt() int64 {
	if o.remote {
		return o.sign
	}
	return o.Cmd.Liveness.At()
}

// The path switch: a host's first command for a LUN over another nexus than its last one starts
// only after the node of the old path has drained that host's sessions and has started or killed
// what it found, and after the host has shown, later than that, that it has not given the new nexus
// up: an answer to a ping that was sent after the old path had been released. Without the second a
// command that was on its way for long, over a session that its host has left, would take the path
// back. An answer from before proves too little: the host may have left since, and its retry may
// have started over the old path while that was still its own.

// pathMax is how long a switch continues without a command that waits for it (ns): hosts repeat
// what was answered BUSY. It takes a round trip to the host and one to the peer.
const pathMax = 12_000_000_000

// unasked notes a host's command that is held while no peer can be asked for its path. Its host may
// give it up and continue at the other node, which takes the path for its own: such a command
// starts only if the host shows, once this node serves, that it is still there.
func (m *Machine) unasked(o *Op) {
	if !o.remote && !o.internal() && !m.pathKnown(o) {
		o.stray = true
	}
}

// pathKnown reports whether the host's path for this LUN is known to be over this nexus.
func (m *Machine) pathKnown(o *Op) bool {
	return m.hosts.table[pathKey{o.LUN, o.Cmd.Nexus.Initiator}][o.Cmd.Nexus]
}

func (m *Machine) onPathSwitch(now int64, msg *Msg) {
	k := pathKey{msg.LUN, string(msg.Meta)}
	m.nextID++
	m.hosts.asks[m.nextID] = &pathAsk{key: k, peer: msg.ID}
	m.act(Action{Kind: ActDrain, ID: m.nextID, Host: k.host, LUN: k.lun})
}

// Drained reports that what was readable from the host's sessions here, when the switch was asked
// for, has been submitted. If both nodes ask at once for one host and LUN, node a goes first: it
// answers b only after its own commands have started, while b kills its own, which the host
// repeats.
func (m *Machine) Drained(now int64, id uint64) {
	ask, ok := m.hosts.asks[id]
	if !ok {
		return
	}
	if m.cfg.Self == A && m.asking(ask.key) {
		return // pathResume comes back to it
	}
	delete(m.hosts.asks, id)
	m.yieldPath(now, ask)
	m.settle(now)
}

// asking reports whether commands of this node wait for the path. A switch whose last command was
// answered BUSY makes way.
func (m *Machine) asking(k pathKey) bool {
	for _, p := range m.hosts.asks {
		if p.ours && p.key == k && m.wanted(p, nil) {
			return true
		}
	}
	return false
}

func (m *Machine) yieldPath(now int64, ask *pathAsk) {
	delete(m.hosts.table, ask.key)
	for id, p := range m.hosts.asks {
		if p.ours && p.key == ask.key {
			delete(m.hosts.asks, id) // what asked is killed below
		}
	}
	if u := m.units[ask.key.lun]; u != nil {
		for o := range u.ops.all() {
			if !o.remote && !o.copy && o.Cmd.Nexus.Initiator == ask.key.host && (o.stage == stHeld || o.stage == stLock) {
				m.finish(now, o, scsi.Busy)
			}
		}
	}
	m.send(&Msg{Type: MsgPathSwitchAck, ID: ask.peer})
}

func (m *Machine) onPathSwitchAck(now int64, msg *Msg) {
	ask, ok := m.hosts.asks[msg.ID]
	if !ok || !ask.ours {
		m.Stats.StaleMessages++
		return
	}
	ask.at = max(now, 1)
	m.pathDone(now, ask)
}

// pathDone ends a switch that both the peer and the host have agreed to.
func (m *Machine) pathDone(now int64, ask *pathAsk) {
	if ask.at == 0 {
		return
	}
	if ask.life != nil && ask.life.At() < ask.at {
		m.prove(now, ask.life)
		return
	}
	for id, p := range m.hosts.asks {
		if p.ours && p.key == ask.key && p.nexus == ask.nexus {
			delete(m.hosts.asks, id) // also what an earlier session of this nexus had asked: its commands need no switch any more
		}
	}
	if m.hosts.table[ask.key] == nil {
		m.hosts.table[ask.key] = map[scsi.NexusID]bool{}
	}
	m.hosts.table[ask.key][ask.nexus] = true
	m.Stats.PathSwitches++
	if u := m.units[ask.key.lun]; u != nil {
		for o := range u.ops.all() {
			if o.stage == stHeld && !o.remote && !o.copy {
				m.dispatch(now, o)
			}
		}
	}
	m.pathResume(ask.key)
}

// pathResume continues with the switches that the peer has asked for and that had to wait for our
// own.
func (m *Machine) pathResume(k pathKey) {
	for _, id := range sorted(m.hosts.asks) {
		p := m.hosts.asks[id]
		if !p.ours && p.key == k {
			m.act(Action{Kind: ActDrain, ID: id, Host: p.key.host, LUN: p.key.lun})
		}
	}
}

// pathDrop forgets a switch whose commands have all been killed: a host that has left is not waited
// for.
func (m *Machine) pathDrop(o *Op) {
	if len(m.hosts.asks) == 0 || o.remote || o.internal() {
		return
	}
	k := pathKey{o.LUN, o.Cmd.Nexus.Initiator}
	for _, id := range sorted(m.hosts.asks) {
		p := m.hosts.asks[id]
		if !p.ours || p.key != k || p.nexus != o.Cmd.Nexus || p.life != o.Cmd.Liveness {
			continue
		}
		if m.wanted(p, o) {
			return
		}
		delete(m.hosts.asks, id)
		m.pathResume(k)
		return
	}
}

// wanted reports whether a command other than o waits for a switch of ours.
func (m *Machine) wanted(p *pathAsk, o *Op) bool {
	u := m.units[p.key.lun]
	if u == nil {
		return false
	}
	for w := range u.ops.all() {
		if w != o && w.stage == stHeld && w.Cmd.Nexus == p.nexus && w.Cmd.Liveness == p.life {
			return true
		}
	}
	return false
}

// tickPaths forgets the switches that no command has been waiting for, for long: their hosts have
// left.
func (m *Machine) tickPaths(now int64) {
	for _, id := range sorted(m.hosts.asks) {
		if p := m.hosts.asks[id]; p != nil && p.ours && now-p.since > pathMax && !m.wanted(p, nil) {
			delete(m.hosts.asks, id)
			m.pathResume(p.key)
		}
	}
}

// pathResend asks again on a new link; what the peer had asked for it asks again itself.
func (m *Machine) pathResend() {
	for _, id := range sorted(m.hosts.asks) {
		p := m.hosts.asks[id]
		if p.ours {
			p.at = 0
			m.send(&Msg{Type: MsgPathSwitch, ID: id, LUN: p.key.lun, Meta: []byte(p.key.host)})
		} else {
			delete(m.hosts.asks, id)
		}
	}
}

// pathForget starts over: with one member there is one path, with the next two everyone asks once.
func (m *Machine) pathForget(now int64) {
	clear(m.hosts.asks)
	clear(m.hosts.table)
}
