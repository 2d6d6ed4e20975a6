package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// The path switch of R11a: a host's first command for a LUN over another nexus than its last one starts only after the node
// of the old path has drained that host's sessions and has started or killed what it found, and after the host has shown,
// later than that, that it has not given the new nexus up: an answer to a ping that was sent after the old path had been let
// go. Without the second a command that was on its way for long, over a session that its host has left, would take the path
// back. An answer from before proves too little: the host may have left since, and its retry may have started over the
// old path while that was still its own.

// pathKey is a LUN as a host sees it. The paths that are here are those of its nexuses: they do not exclude each other, for a
// host may use several to one node.
type pathKey struct {
	lun  LUNID
	host string
}

// pathAsk is a switch under way: asked of the peer (ours), or asked by the peer and being drained here.
type pathAsk struct {
	key   pathKey
	ours  bool
	peer  uint64 // the peer's number, when it asked
	nexus scsi.NexusID
	life  *scsi.Life
	at    int64 // when the peer had let go; 0: not yet
	since int64 // when it was asked
}

// pathMax is how long a switch goes on without a command that waits for it (ns): hosts repeat what was answered BUSY. It takes a
// round trip to the host and one to the peer.
const pathMax = 12_000_000_000

// pathHere reports whether the host's path for this LUN is through this node, and asks for the switch if not.
func (m *Machine) pathHere(now int64, o *Op) bool {
	if m.phase == Alone || m.pathKnown(o) {
		return true // alone the other node is no member
	}
	k := pathKey{o.LUN, o.S.Nexus.Initiator}
	for _, p := range m.paths {
		if p.ours && p.key == k && p.nexus == o.S.Nexus && p.life == o.S.Life {
			return false
		}
	}
	m.nextID++
	m.paths[m.nextID] = &pathAsk{key: k, ours: true, nexus: o.S.Nexus, life: o.S.Life, since: now}
	m.send(&Msg{Type: MsgPathSwitch, ID: m.nextID, LUN: k.lun, Meta: []byte(k.host)})
	return false
}

// unasked notes a host's command that is held while nobody can be asked for its path. Its host may give it up and go on at
// the other node, which takes the path for its own: such a command starts only if the host shows, once this node serves,
// that it is still there.
func (m *Machine) unasked(o *Op) {
	if !o.remote && !o.internal() && !m.pathKnown(o) {
		o.stray = true
	}
}

// pathKnown reports whether the host's path for this LUN is known to be over this nexus.
func (m *Machine) pathKnown(o *Op) bool {
	return m.pathTable[pathKey{o.LUN, o.S.Nexus.Initiator}][o.S.Nexus]
}

// pathDrop forgets a switch whose commands have all been killed: a host that has left is not waited for.
func (m *Machine) pathDrop(o *Op) {
	if len(m.paths) == 0 || o.remote || o.internal() {
		return
	}
	k := pathKey{o.LUN, o.S.Nexus.Initiator}
	for _, id := range sorted(m.paths) {
		p := m.paths[id]
		if !p.ours || p.key != k || p.nexus != o.S.Nexus || p.life != o.S.Life {
			continue
		}
		if m.wanted(p, o) {
			return
		}
		delete(m.paths, id)
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
		if w != o && w.stage == stHeld && w.S.Nexus == p.nexus && w.S.Life == p.life {
			return true
		}
	}
	return false
}

// tickPaths forgets the switches that no command has been waiting for, for long: their hosts have left.
func (m *Machine) tickPaths(now int64) {
	for _, id := range sorted(m.paths) {
		if p := m.paths[id]; p != nil && p.ours && now-p.since > pathMax && !m.wanted(p, nil) {
			delete(m.paths, id)
			m.pathResume(p.key)
		}
	}
}

func (m *Machine) onPathSwitch(now int64, msg *Msg) {
	k := pathKey{msg.LUN, string(msg.Meta)}
	m.nextID++
	m.paths[m.nextID] = &pathAsk{key: k, peer: msg.ID}
	m.act(Action{Kind: ActDrain, ID: m.nextID, Host: k.host, LUN: k.lun})
}

// Drained reports that what was readable from the host's sessions here, when the switch was asked for, has been
// submitted. If both nodes ask at once for one host and LUN, node a goes first: it answers b only after its own
// commands have started, while b kills its own, which the host repeats.
func (m *Machine) Drained(now int64, id uint64) {
	ask, ok := m.paths[id]
	if !ok {
		return
	}
	if m.cfg.Self == A && m.asking(ask.key) {
		return // pathResume comes back to it
	}
	delete(m.paths, id)
	m.yieldPath(now, ask)
	m.settle(now)
}

// asking reports whether commands of this node wait for the path. A switch whose last command was answered BUSY makes way.
func (m *Machine) asking(k pathKey) bool {
	for _, p := range m.paths {
		if p.ours && p.key == k && m.wanted(p, nil) {
			return true
		}
	}
	return false
}

func (m *Machine) yieldPath(now int64, ask *pathAsk) {
	delete(m.pathTable, ask.key)
	for id, p := range m.paths {
		if p.ours && p.key == ask.key {
			delete(m.paths, id) // what asked is killed below
		}
	}
	if u := m.units[ask.key.lun]; u != nil {
		for o := range u.ops.all() {
			if !o.remote && !o.copy && o.S.Nexus.Initiator == ask.key.host && (o.stage == stHeld || o.stage == stLock) {
				m.finish(now, o, scsi.Busy)
			}
		}
	}
	m.send(&Msg{Type: MsgPathSwitchAck, ID: ask.peer})
}

func (m *Machine) onPathSwitchAck(now int64, msg *Msg) {
	ask, ok := m.paths[msg.ID]
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
	for id, p := range m.paths {
		if p.ours && p.key == ask.key && p.nexus == ask.nexus {
			delete(m.paths, id) // also what an earlier session of this nexus had asked: its commands need no switch any more
		}
	}
	if m.pathTable[ask.key] == nil {
		m.pathTable[ask.key] = map[scsi.NexusID]bool{}
	}
	m.pathTable[ask.key][ask.nexus] = true
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

// pathResume goes on with what the peer has asked for and what had to wait for our own turn.
func (m *Machine) pathResume(k pathKey) {
	for _, id := range sorted(m.paths) {
		p := m.paths[id]
		if !p.ours && p.key == k {
			m.act(Action{Kind: ActDrain, ID: id, Host: p.key.host, LUN: p.key.lun})
		}
	}
}

// pathResend asks again on a new link; what the peer had asked for it asks again itself.
func (m *Machine) pathResend() {
	for _, id := range sorted(m.paths) {
		p := m.paths[id]
		if p.ours {
			p.at = 0
			m.send(&Msg{Type: MsgPathSwitch, ID: id, LUN: p.key.lun, Meta: []byte(p.key.host)})
		} else {
			delete(m.paths, id)
		}
	}
}

// pathForget starts over: with one member there is one path, with the next two everyone asks once.
func (m *Machine) pathForget(now int64) {
	clear(m.paths)
	clear(m.pathTable)
}
