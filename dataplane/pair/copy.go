package pair

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// copyWindow ranges of copyChunk bytes are under way at once: enough to hide the link's latency,
// few enough that a host's write never waits long for a range that is being copied, nor a mirrored
// write on the link behind one (docs/decisions/0011). While hosts are at work it is one range (R7,
// "throttled by foreground I/O").
const (
	copyChunk  = 256 << 10
	copyWindow = 4
	copyYield  = 20_000_000 // ns since a host's last command: less is foreground I/O
	maxDirty   = 1 << 20    // bytes of one object's bits on the link
	maxRegions = 1 << 26    // 256 TiB of 4 MiB
)

// copyPlan is what is still to copy to a joiner. It outlives the link, so that a resync that
// stopped continues where it was when the same process comes back. The next process is compared
// with from the start: nothing tells whether its store is what it was, for one that was put back to
// a state from the midst of this very copy differs in nothing but its content.
type copyPlan struct {
	store   string
	joiner  Incarnation
	full    bool // everything
	blind   bool // and sent without a comparison: the joiner's cache may show what its disk does not hold (R12)
	objects []*copyObject
	known   map[LUNID]*copyObject
	at      int // index into objects
}

type copyObject struct {
	CopyObject
	todo Regions     // to compare; a region leaves when all of it has been answered
	left map[int]int // ranges under way, by region
	next int         // region to begin next, or to continue with
	off  int64       // in it
}

func (m *Machine) regions(size int64) int { return int((size + m.cfg.Region - 1) / m.cfg.Region) }

// planBegin makes the plan, or takes up the former one.
func (m *Machine) planBegin() {
	r := &m.resync
	in := m.link.peer.Incarnation
	if p := m.plan; p != nil && p.store == m.link.peer.Store && p.joiner == in && !m.peerDistrusted() {
		m.Stats.Resumes++
		m.event("resync continues where it stopped")
		r.view.Full, r.plan = p.full, p
		return
	}
	r.plan = &copyPlan{store: m.link.peer.Store, joiner: in, full: r.view.Full, blind: m.peerDistrusted(), known: map[LUNID]*copyObject{}}
	m.plan = r.plan
	for _, o := range r.exported {
		c := m.planAdd(o)
		if u := m.units[o.ID]; u != nil {
			c.todo.Or(u.intents.hot)
			c.todo.Or(u.intents.setting)
			c.todo.Or(u.intents.next)
		}
		if r.plan.full {
			c.whole(m)
		}
	}
}

func (m *Machine) planAdd(o CopyObject) *copyObject {
	p := m.resync.plan
	c := &copyObject{CopyObject: o, left: map[int]int{}}
	if old := p.known[o.ID]; old != nil {
		p.objects = slices.DeleteFunc(p.objects, func(x *copyObject) bool { return x == old })
	}
	p.known[o.ID] = c
	p.objects = append(p.objects, c)
	return c
}

func (c *copyObject) whole(m *Machine) {
	if n := m.regions(c.Size); n > 0 {
		c.todo.AddAll(0, n-1)
	}
}

// planDirty adds the joiner's bits.
func (m *Machine) planDirty(now int64, msg *Msg) {
	p := m.resync.plan
	if p == nil {
		return
	}
	dirty, err := decodeRegions(msg.Meta, maxRegions)
	if err != nil {
		m.resyncStop(now, "the joiner's write-intent bits cannot be decoded")
		return
	}
	if c := p.known[msg.LUN]; c != nil {
		c.todo.Or(dirty)
	}
}

// planObjects completes the plan with what the joiner said of its objects, and starts the count.
func (m *Machine) planObjects(now int64, raw []byte) bool {
	r := &m.resync
	p := r.plan
	full, err := decodeIDs(raw)
	if err != nil || p == nil {
		m.resyncStop(now, "the joiner's answer to the metadata cannot be decoded")
		return false
	}
	for _, o := range r.exported { // created while the joiner was away, if the plan is continued
		if c := p.known[o.ID]; c == nil || c.Born != o.Born {
			m.planAdd(o).whole(m)
		} else {
			c.Size = o.Size
		}
	}
	for _, id := range full {
		if c := p.known[id]; c != nil {
			c.whole(m)
		}
	}
	r.exported = nil
	for _, c := range p.objects {
		c.restart(m)
		r.view.Total += uint64(c.bytes(m))
	}
	p.at = 0
	return true
}

// restart begins with the first region that is still to do.
func (c *copyObject) restart(m *Machine) {
	clear(c.left)
	c.next, c.off = 0, 0
	if n := m.regions(c.Size); len(c.todo)*64 > n { // beyond the end after a shrink that never was: nothing to copy
		for i := c.todo.Next(n); i >= 0; i = c.todo.Next(i + 1) {
			c.todo.Drop(i)
		}
	}
}

func (c *copyObject) bytes(m *Machine) (n int64) {
	for i := c.todo.Next(0); i >= 0; i = c.todo.Next(i + 1) {
		n += min(m.cfg.Region, c.Size-int64(i)*m.cfg.Region)
	}
	return n
}

// planMore adds objects that were made meanwhile and reports whether there are any.
func (m *Machine) planMore(objs []CopyObject) bool {
	r := &m.resync
	p := r.plan
	more := false
	for _, o := range objs {
		if c := p.known[o.ID]; c != nil && c.Born == o.Born {
			continue
		}
		c := m.planAdd(o)
		c.whole(m)
		r.view.Total += uint64(c.bytes(m))
		more = true
	}
	p.at = 0
	return more
}

// planWrite notes a write that the joiner does not get: its regions are to be copied again if the
// plan is continued.
func (m *Machine) planWrite(o *Op) {
	if m.plan == nil || m.phase != Alone || m.resync.mirror {
		return
	}
	m.planAgain(o)
}

func (m *Machine) planAgain(o *Op) {
	if m.plan == nil {
		return
	}
	if c := m.plan.known[o.LUN]; c != nil {
		for s := range m.spans(o.Cmd.Kind, o.lock.Off, o.lock.End-o.lock.Off, o.Cmd.Ranges) {
			c.todo.AddAll(s.first, s.last)
		}
	}
}

// rangeCopied counts a range that the joiner has; the region is done with its last one.
func (m *Machine) rangeCopied(o *Op) {
	p := m.resync.plan
	if p == nil {
		return
	}
	c := p.known[o.LUN]
	if c == nil {
		return
	}
	i := int(o.Cmd.Off / m.cfg.Region)
	if c.left[i]--; c.left[i] <= 0 && c.next > i {
		delete(c.left, i)
		c.todo.Drop(i)
	}
}

// copyNext keeps the window full.
func (m *Machine) copyNext(now int64) {
	r := &m.resync
	window := copyWindow
	if now-m.hosts.at < copyYield {
		window = 1
	}
	for r.stage == rsCopy && m.phase == Alone && r.inflight < window {
		p := r.plan
		if p.at >= len(p.objects) {
			if r.inflight == 0 && now >= r.listAt {
				r.stage = rsList // look again: what was made meanwhile is copied as well
				m.act(Action{Kind: ActResyncList})
			}
			return
		}
		c := p.objects[p.at]
		i := c.todo.Next(c.next)
		if i < 0 {
			p.at++
			continue
		}
		if i != c.next {
			c.next, c.off = i, 0
		}
		start := int64(i) * m.cfg.Region
		end := min(start+m.cfg.Region, c.Size)
		off := start + c.off
		n := min(copyChunk, end-off)
		c.left[i]++
		if c.off += n; off+n >= end {
			c.next, c.off = i+1, 0
		}
		m.copyRange(now, c.ID, off, n)
	}
}

func (m *Machine) copyRange(now int64, id LUNID, off, n int64) {
	o := &Op{Cmd: &scsi.Op{Kind: scsi.OpRead, Off: off, Len: n}, LUN: id, copy: true, gen: m.copies}
	m.resync.inflight++
	u := m.units[id]
	if u == nil {
		u = &m.snaps
	}
	m.nextID++
	o.id, o.unit, o.since, o.stage = m.nextID, u, now, stNew
	u.ops.push(&o.place, o)
	m.dispatch(now, o)
}

func (m *Machine) copyRead(now int64, o *Op, res scsi.Result) {
	if o.scrub {
		m.scrubRead(now, o, res)
		return
	}
	r := &m.resync
	switch {
	case m.gone() || r.stage != rsCopy || o.gen != m.copies:
		m.finish(now, o, scsi.Unavailable)
	case res == scsi.Unavailable: // deleted meanwhile
		m.finish(now, o, scsi.OK)
	case res != scsi.OK:
		m.resyncStop(now, "this node could not read a range")
		m.finish(now, o, res)
	case len(o.Bad) > 0 && !o.healed:
		m.damaged(now, o)
	case len(o.Bad) > 0:
		m.copyBad(now, o)
	case r.plan.blind && !o.Hole:
		m.ops[o.id] = o
		m.copySend(o)
	default:
		m.ops[o.id] = o
		m.send(&Msg{Type: MsgCopySum, ID: o.id, LUN: o.LUN, Off: o.Cmd.Off, Len: o.Cmd.Len, Meta: o.Sum})
	}
}

func (m *Machine) copyNeed(now int64, o *Op, msg *Msg) {
	m.Stats.ResyncCompared += uint64(o.Cmd.Len)
	if msg.Result != scsi.OK {
		m.peerFailed(now)
		m.resyncStop(now, "the joiner's store failed to compare a range")
		return
	}
	if msg.Aux == 0 {
		m.finish(now, o, scsi.OK)
		return
	}
	m.copySend(o)
}

func (m *Machine) copySend(o *Op) {
	m.resync.view.Sent += uint64(o.Cmd.Len)
	m.Stats.ResyncBytes += uint64(o.Cmd.Len)
	msg := &Msg{Type: MsgCopyData, ID: o.id, LUN: o.LUN, Off: o.Cmd.Off, Len: o.Cmd.Len, Data: o.Buf[:o.Cmd.Len], Op: o}
	if len(o.Bad) > 0 {
		msg.Meta = encodeRanges(o.Bad)
	}
	m.send(msg)
}

func (m *Machine) copyEnded(now int64, o *Op) {
	if r := &m.resync; o.gen == m.copies && r.inflight > 0 {
		r.inflight--
		switch o.result {
		case scsi.OK:
			r.view.Done += uint64(o.Cmd.Len)
			m.rangeCopied(o)
		case scsi.Unavailable: // the LUN is gone
		default:
			m.resyncStop(now, "a range could not be copied") // its region is still to do
		}
	}
	m.act(Action{Kind: ActCopyFree, Op: o})
	m.copyNext(now)
}

// copyStop ends the copies that wait for the joiner.
func (m *Machine) copyStop(now int64) {
	for _, id := range sorted(m.ops) {
		if o := m.ops[id]; o != nil && o.copy && !o.scrub {
			m.finish(now, o, scsi.Unavailable)
		}
	}
}
