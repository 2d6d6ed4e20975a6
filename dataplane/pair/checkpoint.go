package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// A checkpoint takes bits back (R7). The owner has both nodes flush the LUN; what was written
// before that is then durable on both, and equal. It tells the partner to keep only the bits of
// regions that were written since the checkpoint began; the partner first makes the checkpoint's
// number durable, then forgets the others and answers; the owner does the same. The numbers, one
// count for the checkpoints of either node, are how a store that was rolled back is known (R6): a
// store from before a checkpoint lacks its number, and then bits may be missing that the rollback
// would need.
//
// Crash windows: before the partner's number is durable nothing has changed. After it, the partner
// is one ahead, which is legal, and the owner still has all its bits. A bit that was taken back in
// memory and is still set on disk costs a copy that was not needed.

// Checkpoint is what a store has recorded about its counterpart.
type Checkpoint struct {
	Peer       string    `json:"peer"`       // id of the store that the bits are relative to; empty: none, a full copy is due
	Generation uint64    `json:"generation"` // of the data
	Count      [2]uint64 `json:"count"`      // checkpoints led by node a and node b
	Settled    uint64    `json:"settled"`    // the last one led by the other node that has its number durable there, and whose bits may be gone here
}

// State is what a node keeps durably beside the epoch and the metadata.
type State struct {
	Check    Checkpoint `json:"check"`
	Flushed  uint64     `json:"flushed"`  // epoch of {self} by which everything written under older ones was durable here (R8)
	Old      bool       `json:"old"`      // the store is an older copy of itself, until it has been copied to (R6)
	LostAll  bool       `json:"lost_all"` // in every LUN, whatever its bits say: this node took over by force
	Lost     bool       `json:"lost"`     // acknowledged writes may be gone and the entry that says so is still to come (R8)
	Lock     string     `json:"lock"`     // Config.Lock of the process that last acted on a record; empty: of release 0.1.0 (R2b)
	Replaces bool       `json:"replaces"` // this node is alone in place of a process that may not know it yet, and has served no host (R2b)
}

// ckptState is the checkpoint under way at this node; one at a time.
type ckptState struct {
	stage ckptStage
	unit  *unit
	flush *Op // under way at ckFlush; one that was given up may end later
	epoch uint64
	seq   uint64
	id    uint64 // of this one: a number may have been tried before
	sent  int64  // when the partner was notified
	// flushOnly: nothing is cleared
	flushOnly bool
	next      int64 // no new one before
}

type ckptStage uint8

const (
	ckIdle  ckptStage = iota
	ckFlush           // both nodes flush
	ckPeer            // the partner makes the number durable and clears
	ckSelf            // the number is being made durable here
)

// tickCheckpoint begins a checkpoint of the LUN that needs one most.
func (m *Machine) tickCheckpoint(now int64) {
	c := &m.ckpt
	if c.stage != ckIdle && (!m.ckptHolds() || c.stage == ckPeer && now-c.sent > int64(m.cfg.MirrorMax)) {
		m.ckptDrop() // the bits stay, on both nodes or on this one
	}
	// A number that is not durable here yet must not be followed by a higher one at the partner: it
	// could be two behind.
	if c.stage != ckIdle || m.phase != Paired || !m.Serving(now) || m.saved.state.Check.Peer == "" || len(m.saved.waits) > 0 {
		return
	}
	var due, fullest *unit
	var dirty int64
	for _, u := range m.sortedUnits() {
		if u.owner != m.cfg.Self || u.quiesced > 0 {
			continue
		}
		if dirty += u.intents.dirty; fullest == nil || u.intents.dirty > fullest.intents.dirty {
			fullest = u
		}
		if now >= c.next && m.ckptDue(now, u) && (due == nil || u.intents.dirty > due.intents.dirty) {
			due = u
		}
	}
	switch {
	case due != nil:
		m.ckptBegin(now, due, false)
	case dirty > m.cfg.CheckpointDirty:
		m.ckptBegin(now, fullest, true)
	}
}

func (m *Machine) ckptDue(now int64, u *unit) bool {
	n := &u.intents
	if n.wrote == 0 && n.hot.Empty() {
		return false
	}
	if n.since == 0 {
		n.since = now
	}
	c := &m.cfg
	return now-n.wrote > int64(c.CheckpointIdle) || now-n.since > int64(c.CheckpointEvery) || n.hot.Count() > c.CheckpointHot
}

// ckptBegin has both nodes flush a LUN. flushOnly leaves it at that: what is not flushed is
// bounded, so that a node that becomes alone has little to flush while its hosts wait for their
// first writes (R8); the bits would soon be set again.
func (m *Machine) ckptBegin(now int64, u *unit, flushOnly bool) {
	m.nextID++
	n := &u.intents
	n.dirty = 0
	o := &Op{Cmd: &scsi.Op{Kind: scsi.OpFlush, Arrived: now}, LUN: u.id, ckpt: true, sums: !flushOnly}
	m.ckpt = ckptState{stage: ckFlush, unit: u, flush: o, epoch: m.rec.Epoch, seq: u.seq, id: m.nextID, flushOnly: flushOnly, next: m.ckpt.next}
	if !flushOnly {
		m.ckpt.next = now + int64(m.cfg.CheckpointIdle)
		n.lead, n.since, n.wrote = watch{on: true}, 0, 0
	}
	for w := range u.ops.all() {
		if !flushOnly && w.began && w.Cmd.Kind.Writes() && !w.copy { // may end after the flush has passed it by
			for s := range m.spans(w.Cmd.Kind, w.lock.Off, w.lock.End-w.lock.Off, w.Cmd.Ranges) {
				n.lead.recent.AddAll(s.first, s.last)
			}
		}
	}
	m.nextID++
	o.id, o.unit, o.since, o.stage = m.nextID, u, now, stNew
	u.ops.push(&o.place, o)
	m.dispatch(now, o)
}

// ckptHolds reports whether the checkpoint still is of this epoch and owner sequence (R7).
func (m *Machine) ckptHolds() bool {
	c := &m.ckpt
	return m.phase == Paired && c.epoch == m.rec.Epoch && c.seq == c.unit.seq && m.units[c.unit.id] == c.unit && m.leave.why == ""
}

// ckptDrop gives up: the bits stay.
func (m *Machine) ckptDrop() {
	c := &m.ckpt
	if c.unit != nil {
		c.unit.intents.lead = watch{}
	}
	*c = ckptState{next: c.next}
}

// ckptFlushed is the end of the flush on both nodes. That of a checkpoint that was given up says
// nothing of a later one: what was written in between may not be durable.
func (m *Machine) ckptFlushed(now int64, o *Op) {
	c := &m.ckpt
	if c.stage != ckFlush || c.flush != o {
		return
	}
	if o.result != scsi.OK || c.flushOnly || !m.ckptHolds() {
		m.ckptDrop()
		return
	}
	c.stage = ckPeer
	m.ckptSend(now)
}

func (m *Machine) ckptSend(now int64) {
	c := &m.ckpt
	m.send(&Msg{Type: MsgClear, ID: c.id, LUN: c.unit.id, Seq: c.seq, Aux: int64(m.saved.state.Check.Count[m.cfg.Self] + 1),
		Meta: c.unit.intents.keep(&c.unit.intents.lead).Encode()})
	c.sent = now
}

// keep are the bits that must stay: of regions written since the checkpoint began, or about to be.
func (n *intents) keep(w *watch) Regions {
	keep := w.recent.Clone()
	keep.Or(n.setting)
	keep.Or(n.next)
	return keep
}

// onClear is the partner's part. Everything that the owner had sent before it has been received,
// for frames of a link come in order; what of that is still being applied keeps its bit.
func (m *Machine) onClear(now int64, msg *Msg) {
	u := m.units[msg.LUN]
	peer := m.cfg.Self.Peer()
	if u == nil || m.phase != Paired || !m.link.agreed || m.leave.why != "" || msg.Seq != u.seq || u.owner != peer {
		m.Stats.StaleMessages++
		return
	}
	switch have := m.saved.state.Check.Count[peer]; {
	case m.follow != nil && !m.follow.saved: // its answer comes when it is durable
		m.Stats.StaleMessages++
		return
	case uint64(msg.Aux) == have && m.followed == msg.ID: // asked again after a break of the link
		m.send(&Msg{Type: MsgClearAck, ID: msg.ID, LUN: msg.LUN, Aux: msg.Aux})
		return
	case uint64(msg.Aux) == have: // the number went to a checkpoint that the owner gave up
		m.send(&Msg{Type: MsgClearAck, ID: msg.ID, LUN: msg.LUN, Aux: msg.Aux, Result: scsi.Busy})
		return
	case uint64(msg.Aux) != have+1:
		m.Stats.StaleMessages++
		return
	}
	m.followDrop() // what the last one would have cleared stays
	keep, err := decodeRegions(msg.Meta, maxRegions)
	if err != nil {
		m.Stats.StaleMessages++
		return
	}
	n := &u.intents
	n.follow = watch{on: true, recent: keep}
	for l := range u.applies.All() {
		if l.Off < l.End {
			n.follow.recent.AddAll(int(l.Off/m.cfg.Region), int((min(l.End, max(u.size, 1))-1)/m.cfg.Region))
		}
	}
	m.follow = &follower{unit: u, epoch: m.rec.Epoch, seq: u.seq, count: uint64(msg.Aux), id: msg.ID}
	m.saved.state.Check.Count[peer] = uint64(msg.Aux)
	m.saved.state.Check.Settled = uint64(msg.Aux) - 1 // the leader starts no other before the last one is durable there
	m.saveState(thenFollow)
}

// follower is a checkpoint of the peer's that this node takes part in.
type follower struct {
	unit  *unit
	epoch uint64
	seq   uint64
	count uint64
	id    uint64
	saved bool // the number is durable here
}

// followSaved: the number is durable here, so the bits may go.
func (m *Machine) followSaved(now int64) {
	f := m.follow
	if f == nil {
		return
	}
	m.followed = f.id
	if !m.followHolds() {
		m.followDrop()
		return
	}
	f.saved = true
	m.send(&Msg{Type: MsgClearAck, ID: f.id, LUN: f.unit.id, Aux: int64(f.count)})
}

func (m *Machine) followHolds() bool {
	f := m.follow
	return m.phase == Paired && f.epoch == m.rec.Epoch && f.seq == f.unit.seq && m.units[f.unit.id] == f.unit
}

func (m *Machine) followDrop() {
	if m.follow != nil {
		m.follow.unit.intents.follow = watch{}
		m.follow = nil
	}
}

// onClearDone: the leader has the number durable. That is put on record before the bits go: a
// leader whose store lacks it was rolled back.
func (m *Machine) onClearDone(now int64, msg *Msg) {
	f := m.follow
	if f == nil || !f.saved || msg.ID != f.id || !m.followHolds() {
		return
	}
	m.saved.state.Check.Settled = f.count
	m.saveState(thenSettle)
}

func (m *Machine) followSettled(now int64) {
	f := m.follow
	if f == nil || m.saved.state.Check.Settled != f.count {
		return
	}
	if m.followHolds() {
		m.clear(f.unit, &f.unit.intents.follow)
	}
	m.followDrop()
}

func (m *Machine) onClearAck(now int64, msg *Msg) {
	c := &m.ckpt
	if c.stage != ckPeer || msg.ID != c.id || uint64(msg.Aux) != m.saved.state.Check.Count[m.cfg.Self]+1 {
		m.Stats.StaleMessages++
		return
	}
	// The partner has the number: from here on it is this node's too, whatever becomes of the bits.
	m.saved.state.Check.Count[m.cfg.Self]++
	c.stage = ckSelf
	m.saveState(thenCheckpoint)
	if msg.Result != scsi.OK {
		m.ckptDrop() // the number belongs to another checkpoint there; the next one takes the next number
	}
}

// ckptSaved: the number is durable on both nodes.
func (m *Machine) ckptSaved(now int64) {
	c := &m.ckpt
	if c.stage != ckSelf {
		return
	}
	if m.ckptHolds() {
		m.clear(c.unit, &c.unit.intents.lead)
		m.send(&Msg{Type: MsgClearDone, ID: c.id, LUN: c.unit.id})
		m.Stats.Checkpoints++
	}
	m.ckptDrop()
}

// clear takes the bits back here.
func (m *Machine) clear(u *unit, w *watch) {
	n := &u.intents
	keep := n.keep(w)
	before := n.hot.Count()
	n.hot.And(keep)
	m.Stats.Cleared += uint64(before - n.hot.Count())
	if n.hot.Empty() {
		n.hot = nil
	}
	m.act(Action{Kind: ActClear, LUN: u.id, Keep: keep})
}

// afterSave says what waits for a State to be durable.
type afterSave uint8

const (
	thenNothing    afterSave = iota
	thenFollow               // the partner's half of a checkpoint
	thenCheckpoint           // the owner's
	thenSettle               // the partner's, when the owner has the number
	thenAdmit                // source: the joiner's store is the counterpart now; then the arbiter is asked
	thenJoined               // joiner: the copy is complete; then it notifies the source
	thenClaim                // it is on record that acknowledged writes may be lost; then the arbiter is asked

	afterSaves
)

type saveWait struct {
	id  uint64
	why afterSave
	msg *Msg
	n   uint64 // link
}

func (m *Machine) saveState(why afterSave) { m.saveStateFor(why, nil) }

func (m *Machine) saveStateFor(why afterSave, msg *Msg) {
	m.saved.stateID++
	m.saved.last[why] = m.saved.stateID
	m.saved.waits = append(m.saved.waits, saveWait{m.saved.stateID, why, msg, m.link.number})
	m.act(Action{Kind: ActSaveState, ID: m.saved.stateID, State: m.saved.state})
}

// StateSaved reports ActSaveState number id, and with it every lower one. A disk may take so long
// that what waited for a save has been given up and the same has begun again, with a save of its
// own: the end of the earlier save says nothing of what the later one records.
func (m *Machine) StateSaved(now int64, id uint64, ok bool) {
	if !ok {
		m.StoreFailed(now, "saving the node's own state")
		return
	}
	for len(m.saved.waits) > 0 && m.saved.waits[0].id <= id {
		w := m.saved.waits[0]
		m.saved.waits = m.saved.waits[1:]
		if w.id != m.saved.last[w.why] {
			continue
		}
		switch w.why {
		case thenFollow:
			m.followSaved(now)
		case thenSettle:
			m.followSettled(now)
		case thenCheckpoint:
			m.ckptSaved(now)
		case thenAdmit:
			m.admitSaved(now)
		case thenJoined:
			m.joinSaved(now, w)
		case thenClaim:
			m.claimSaved(now)
		}
	}
	m.settle(now)
}
