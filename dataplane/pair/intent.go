package pair

import (
	"iter"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The write-intent bitmap (R7). A region's bit is durable on a node before that node first applies
// a write to it, so that after a break the regions in which the two copies may differ are known to
// the node that comes back: the union of both nodes' bits. A write to a region whose bit is set, a
// hot one, costs nothing more. The bits go through ActIntend, one at a time for a LUN, and what is
// asked for meanwhile goes with the next (group commit); both nodes of a pair do it in parallel,
// each for its own. checkpoint.go clears them.

// DefaultRegion is how many bytes one bit covers.
const DefaultRegion = 4 << 20

// aheadRegions more are set when a write comes right behind a hot region: a sequential writer waits
// once in so many.
const aheadRegions = 7

// intents are one LUN's bits at this node.
type intents struct {
	hot     Regions // durable here
	setting Regions // in the ActIntend under way
	next    Regions // asked for since
	busy    bool    // ActIntend under way
	lead    watch   // of the checkpoint that this node leads
	follow  watch   // of the one that the peer leads: the ownership may just have moved
	waits   []intentWait
	wrote   int64 // time of the last write; 0: nothing since the last checkpoint
	since   int64 // time at which a checkpoint was first found due for what is hot now
	dirty   int64 // bytes written since the last checkpoint
}

// watch is what is written while a checkpoint is under way.
type watch struct {
	on     bool
	recent Regions
}

// touch notes a write for the checkpoints under way.
func (n *intents) touch(s span) {
	for _, w := range []*watch{&n.lead, &n.follow} {
		if w.on {
			w.recent.AddAll(s.first, s.last)
		}
	}
}

// intentWait is a write that waits for its regions: of a host here, or of the peer.
type intentWait struct {
	op    *Op
	id    uint64 // of op: it may have ended and been taken for another command
	apply *Msg
}

// LoadIntents gives the bits that the store holds, before Start. A LUN that is not named has none
// set.
func (m *Machine) LoadIntents(id LUNID, hot Regions) {
	if u := m.units[id]; u != nil {
		u.intents.hot.Or(hot)
	}
}

// span is a run of regions.
type span struct{ first, last int }

// spans are the regions that a command writes.
func (m *Machine) spans(kind scsi.OpKind, off, length int64, ranges []scsi.Range) iter.Seq[span] {
	return func(yield func(span) bool) {
		if kind != scsi.OpUnmap {
			yield(span{int(off / m.cfg.Region), int((off + max(length, 1) - 1) / m.cfg.Region)})
			return
		}
		for _, r := range ranges {
			if r.Len > 0 && !yield(span{int(r.Off / m.cfg.Region), int((r.Off + r.Len - 1) / m.cfg.Region)}) {
				return
			}
		}
	}
}

// hotOp reports whether all bits that an op needs are durable, and asks for those that are not.
func (m *Machine) hotOp(now int64, o *Op) bool {
	return m.hot(now, o.unit, o.Cmd.Kind, o.lock.Off, o.lock.End-o.lock.Off, o.Cmd.Ranges)
}

// hotMsg is hotOp for what the peer sent.
func (m *Machine) hotMsg(now int64, u *unit, msg *Msg) bool {
	var ranges []scsi.Range
	if msg.Kind == scsi.OpUnmap {
		ranges, _ = msg.DecodeRanges() // what cannot be read is refused when it is applied
	}
	return m.hot(now, u, msg.Kind, msg.Off, msg.Len, ranges)
}

func (m *Machine) hot(now int64, u *unit, kind scsi.OpKind, off, length int64, ranges []scsi.Range) bool {
	ok := true
	for s := range m.spans(kind, off, length, ranges) {
		ok = m.want(now, u, s) && ok
	}
	if !ok {
		m.Stats.ColdWrites++
		m.intendNext(u)
	}
	return ok
}

// want reports whether the regions of s are hot, and puts those that are not on the list.
func (m *Machine) want(now int64, u *unit, s span) bool {
	n := &u.intents
	if u.size > 0 {
		if s.last = min(s.last, int((u.size-1)/m.cfg.Region)); s.last < s.first {
			return true // beyond the end: refused where it is executed
		}
	}
	n.touch(s)
	n.wrote = now
	if n.hot.HasAll(s.first, s.last) {
		return true
	}
	last := s.last
	if s.first > 0 && n.hot.Has(s.first-1) {
		if last += aheadRegions; u.size > 0 {
			last = min(last, int((u.size-1)/m.cfg.Region))
		}
	}
	for i := s.first; i <= last; i++ {
		if !n.hot.Has(i) && !n.setting.Has(i) {
			n.next.Add(i)
		}
	}
	return false
}

func (m *Machine) intendNext(u *unit) {
	n := &u.intents
	if n.busy || n.next.Empty() {
		return
	}
	n.busy = true
	n.setting, n.next = n.next, nil
	m.Stats.Intents++
	m.act(Action{Kind: ActIntend, LUN: u.id, Regions: n.setting.List()})
}

// Intended reports ActIntend: the regions are durable, or the store has failed.
func (m *Machine) Intended(now int64, id LUNID, ok bool) {
	u := m.units[id]
	if u == nil || !u.intents.busy {
		return // the LUN was deleted meanwhile
	}
	n := &u.intents
	n.busy = false
	if !ok {
		n.setting = nil
		waits := n.waits
		n.waits = nil
		for _, w := range waits {
			if w.apply != nil {
				m.Applied(now, 0, w.apply, scsi.WriteError)
			}
		}
		m.StoreFailed(now, "write-intent bitmap")
		return
	}
	n.hot.Or(n.setting)
	n.setting = nil
	m.intendNext(u)
	waits := n.waits
	n.waits = nil
	for _, w := range waits {
		switch {
		case w.apply != nil:
			m.applyHot(now, w.apply)
		case w.op.id == w.id && w.op.stage == stIntent:
			m.storeWrite(now, w.op)
		}
	}
	m.settle(now)
}

// waitHot keeps an op until its regions are hot.
func (m *Machine) waitHot(o *Op) {
	o.stage = stIntent
	o.unit.intents.waits = append(o.unit.intents.waits, intentWait{op: o, id: o.id})
}

// cancelWaits drops what the peer sent under an older record and what has not begun to be applied:
// it is as if the frame had not come, and its sender was not answered. A node that becomes alone
// need not wait for the bits of such writes (R4).
func (m *Machine) cancelWaits() {
	for _, u := range m.sortedUnits() {
		n := &u.intents
		waits := n.waits
		n.waits = nil
		for _, w := range waits {
			if w.apply == nil || w.apply.Epoch >= m.rec.Epoch {
				n.waits = append(n.waits, w)
				continue
			}
			m.Stats.Cancelled++
			w.apply.owed.drop()
			m.applying--
			u.applies.Release(&w.apply.turn) // grants what waits behind it, which applyHot drops as well
		}
	}
}
