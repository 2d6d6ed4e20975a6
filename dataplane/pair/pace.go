package pair

import (
	"cmp"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Writes of hosts are paced. What the disks of both nodes cannot take waits here, before it has
// begun, and not at the disks: there a checkpoint's flush, a transfer or a read would wait behind
// it, for as long as Dm and longer. A window bounds the bytes of writes that have begun and not
// ended, for each backing volume; it follows the time that they take, the partner's part included,
// so the slower disk of the two decides. LUNs of a backing volume take turns.

// maxGroups is how many backing volumes have a window of their own.
const maxGroups = 8

// pacer is the window of one backing volume.
type pacer struct {
	window int64   // bytes
	used   int64   // by writes that hold a part of it
	turns  []*unit // with writes that wait, in turn
	cutAt  int64   // the window was last made smaller

	// What the disks have done, for who is late (slow.go).
	selfAt, peerAt int64
	self, peer     prober
}

// cost of a write in its window: the bytes that the disks get.
func (o *Op) bytes() int64 {
	if o.Cmd.Kind == scsi.OpUnmap {
		return 4096 // it frees blocks
	}
	return max(o.Cmd.Len, 1)
}

// paceEnter gives a write its part of the window. False: the window is full, and the write is held
// until there is room.
func (m *Machine) paceEnter(o *Op) bool {
	if o.cost > 0 || o.internal() || !o.Cmd.Kind.Writes() {
		return true
	}
	p := m.pacer(o.unit)
	n := o.bytes()
	if len(p.turns) == 0 && p.room(n) {
		p.used, o.cost = p.used+n, n
		return true
	}
	if !o.queued {
		o.queued = true
		if len(o.unit.paced) == 0 {
			p.turns = append(p.turns, o.unit)
		}
		o.unit.paced = append(o.unit.paced, o)
		m.Stats.Paced++
	}
	m.paceNext(p)
	return o.cost > 0
}

func (p *pacer) room(n int64) bool { return p.used == 0 || p.used+n <= p.window }

func (m *Machine) pacer(u *unit) *pacer {
	p := &m.pacers[u.group%maxGroups]
	if p.window == 0 {
		p.window = m.cfg.Window
	}
	return p
}

// paceLeave gives a write's part of the window back, or its place in the queue.
func (m *Machine) paceLeave(o *Op) {
	if o.cost == 0 && !o.queued {
		return
	}
	p := m.pacer(o.unit)
	p.used, o.cost = p.used-o.cost, 0
	if o.queued {
		m.unqueue(p, o)
	}
	m.paceNext(p)
}

func (m *Machine) unqueue(p *pacer, o *Op) {
	o.queued = false
	u := o.unit
	if i := slices.Index(u.paced, o); i >= 0 {
		u.paced = slices.Delete(u.paced, i, i+1)
	}
	if len(u.paced) == 0 {
		u.paced = nil
		if i := slices.Index(p.turns, u); i >= 0 {
			p.turns = slices.Delete(p.turns, i, i+1)
		}
	}
}

// paceNext lets in what there is room for, of the units in turn.
func (m *Machine) paceNext(p *pacer) {
	for len(p.turns) > 0 {
		u := p.turns[0]
		o := u.paced[0]
		n := o.bytes()
		if !p.room(n) {
			return
		}
		m.unqueue(p, o)
		if len(u.paced) > 0 { // its next turn comes after those of the others
			p.turns = append(p.turns[1:], u)
		}
		p.used, o.cost = p.used+n, n
		if o.stage == stHeld {
			m.due.again = append(m.due.again, o)
		}
	}
}

// timed makes the window follow what a write took that has ended well.
func (m *Machine) timed(now int64, o *Op) {
	if o.cost == 0 || !o.began {
		return
	}
	p := m.pacer(o.unit)
	switch took, want := now-o.StartedAt, int64(m.cfg.WriteTime); {
	case took > want:
		if o.StartedAt >= p.cutAt { // it began with the present window
			p.window = max(p.window*max(want, took/2)/took, m.cfg.WindowMin)
			p.cutAt = now
		}
	case took < want/2 && len(p.turns) > 0:
		p.window = min(p.window+o.cost, m.cfg.WindowMax)
	}
}

// PaceView is a window as it is.
type PaceView struct {
	Window, Used int64 // bytes
	Waiting      int   // writes that have not begun
}

// Pace reads the window of a group.
func (m *Machine) Pace(group uint8) PaceView {
	p := &m.pacers[group%maxGroups]
	v := PaceView{Window: cmp.Or(p.window, m.cfg.Window), Used: p.used}
	for _, u := range p.turns {
		v.Waiting += len(u.paced)
	}
	return v
}
