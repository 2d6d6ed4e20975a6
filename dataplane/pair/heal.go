package pair

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Damaged blocks (R15). The store compares every block that it reads with its checksum. What does
// not match is never answered: the owner takes the range for itself, asks the partner for its copy,
// which is checked there, writes it here and looks again. Nothing is written to either copy
// meanwhile, so both copies match what was acknowledged to hosts, and the owner's block becomes
// what its checksum says, or gets a new one if that was what is wrong: a crash in between leaves a
// block that does not match, which is healed again. No bit is needed, for what is written makes the
// copies alike (R7).

// DefaultBlock is the size in bytes of what one checksum is of.
const DefaultBlock = 4 << 10

// healMax is how much is asked for at once, in bytes.
const healMax = 256 << 10

// healRounds is how often a read is healed and done again: other blocks of it may have been damaged
// meanwhile. A disk on which nothing that is written stays ends it.
const healRounds = 3

// looks reports work for the peer that changes nothing.
func (msg *Msg) looks() bool { return msg.Type == MsgFetch || msg.Type == MsgCopySum }

// damaged continues an op whose blocks do not match their checksums.
func (m *Machine) damaged(now int64, o *Op) {
	o.back, o.since = o.stage, now
	switch {
	case m.gone():
		m.finish(now, o, scsi.Unavailable)
	case o.healed:
		m.lost(now, o)
	case !o.lock.Shared:
		m.healNext(now, o)
	default:
		m.unlock(o)
		o.lock.Shared, o.stage = false, stHealLock
		if o.unit.locks.Acquire(&o.lock) {
			m.healNext(now, o)
		}
	}
}

// healNext heals the next run of blocks, or looks again. The range is this op's alone.
func (m *Machine) healNext(now int64, o *Op) {
	o.since = now
	switch {
	case m.gone():
		m.finish(now, o, scsi.Unavailable)
	case len(o.Bad) == 0 && len(o.beyond) > 0:
		o.Bad, o.beyond = o.beyond, nil
		m.accept(now, o)
	case len(o.Bad) == 0:
		o.rounds++
		o.healed = o.rounds >= healRounds
		m.healResume(o)
	case m.asksJoiner(o):
		o.Verify = true
		m.healAsk(o)
	case m.phase != Paired || !m.link.peer.Sums:
		m.accept(now, o)
	default:
		o.Verify = false
		m.healAsk(o)
	}
}

// asksJoiner reports whether the copy of a node that is being copied to may help: for the blocks of
// this very resync. A joiner has of a block what it was when it left, or what it was given since.
// The checksum here tells whether that is what was written last, so that a block that was not
// written meanwhile is not lost with the only member's copy of it.
func (m *Machine) asksJoiner(o *Op) bool {
	return m.phase == Alone && o.copy && !o.scrub && m.resync.stage == rsCopy && o.gen == m.copies && m.link.up && m.link.peer.Sums
}

// healAsk asks the peer for its copy of the next blocks.
func (m *Machine) healAsk(o *Op) {
	m.nextID++ // the answer to another question is none to this one
	o.id, o.stage = m.nextID, stHealAsk
	o.seq = o.unit.seq // as for a write after a comparison: the partner drops what an older owner asks
	m.ops[o.id] = o
	m.healSend(o)
}

// healRange is what is asked for: a part of the first run, or all that is to be read if it cannot
// be written here. A joiner is asked for one block at a time: of others it may have older content.
func (m *Machine) healRange(o *Op) (off, length int64) {
	switch {
	case o.full:
		return o.Range()
	case o.Verify:
		return o.Bad[0].Off, min(o.Bad[0].Len, m.cfg.Block)
	}
	return o.Bad[0].Off, min(o.Bad[0].Len, healMax)
}

// healBeyond continues with the next block: the joiner has no good copy of this one.
func (m *Machine) healBeyond(now int64, o *Op) {
	off, n := m.healRange(o)
	if k := len(o.beyond) - 1; k >= 0 && o.beyond[k].Off+o.beyond[k].Len == off {
		o.beyond[k].Len += n
	} else {
		o.beyond = append(o.beyond, scsi.Range{Off: off, Len: n})
	}
	o.healedTo(off + n)
	m.healNext(now, o)
}

// healedTo takes what lies before a place out of the first run.
func (o *Op) healedTo(end int64) {
	r := &o.Bad[0]
	if r.Off, r.Len = end, r.Off+r.Len-end; r.Len <= 0 {
		o.Bad = o.Bad[1:]
	}
}

func (m *Machine) healSend(o *Op) {
	off, n := m.healRange(o)
	msg := &Msg{Type: MsgFetch, Seq: o.seq, ID: o.id, LUN: o.LUN, Off: off, Len: n}
	if o.Verify {
		msg.Flags = FlagVerify
	}
	m.send(msg)
}

// healResume does again what met the damage.
func (m *Machine) healResume(o *Op) {
	o.stage = o.back
	kind := ActStore
	switch o.back {
	case stCompare:
		kind = ActCompare
	case stCopy:
		kind = ActCopyRead
	default:
		o.waits = true
	}
	m.storeOps++
	m.act(Action{Kind: kind, Op: o})
}

// onFetch is the partner's part. It reads in order with what it applies: a frame that came twice
// may be on its way to the disk, and a block in the midst of a write does not match. A joiner
// answers only who compares what it gets.
func (m *Machine) onFetch(now int64, msg *Msg) {
	u := m.units[msg.LUN]
	joining := m.phase == Outside && m.resync.joined && msg.Flags&FlagVerify != 0
	if !joining && (m.phase != Paired || !m.link.agreed || m.excl.active || m.leave.why != "" || u != nil && (msg.Seq < u.seq || msg.Seq == u.seq && u.owner == m.cfg.Self)) {
		// It is asked again once this node agrees, and a node that is not the owner any more drops
		// it. A higher seq is of an owner whose entry is still on its way to be applied here.
		m.Stats.StaleMessages++
		return
	}
	if msg.Off < 0 || msg.Len <= 0 || msg.Len > maxForward {
		m.send(&Msg{Type: MsgFetched, ID: msg.ID, Result: scsi.Failed})
		return
	}
	m.applying++
	if u == nil || joining {
		m.act(Action{Kind: ActFetch, Msg: msg})
	} else {
		m.applyInOrder(now, u, msg)
	}
}

// Fetched reports ActFetch. data is not used again by the caller.
func (m *Machine) Fetched(now int64, link uint64, msg *Msg, data []byte, res scsi.Result) {
	m.waited(now, msg)
	m.applyEnded(now)
	if link == m.link.number && m.link.up {
		m.send(&Msg{Type: MsgFetched, ID: msg.ID, Result: res, Data: data})
	}
	m.settle(now)
}

func (m *Machine) onFetched(now int64, msg *Msg) {
	o := m.ops[msg.ID]
	if o == nil || o.stage != stHealAsk {
		m.Stats.StaleMessages++
		return
	}
	delete(m.ops, o.id)
	off, n := m.healRange(o)
	switch {
	case m.gone():
		m.finish(now, o, scsi.Unavailable)
	case o.Verify && (msg.Result != scsi.OK && msg.Result != scsi.Damaged || int64(len(msg.Data)) != n):
		m.healBeyond(now, o)
	case msg.Result == scsi.Damaged && !o.Verify && !o.full && n > m.cfg.Block: // not all of it need be lost there
		half := (n/2 + m.cfg.Block - 1) / m.cfg.Block * m.cfg.Block
		o.Bad = append([]scsi.Range{{Off: off, Len: half}, {Off: off + half, Len: o.Bad[0].Len - half}}, o.Bad[1:]...)
		m.healNext(now, o)
	case msg.Result == scsi.Damaged && !o.Verify && !o.full:
		o.Bad = []scsi.Range{{Off: off, Len: n}} // the second look finds the others, which the partner may have
		m.accept(now, o)
	case msg.Result != scsi.OK && !o.Verify || int64(len(msg.Data)) != n:
		m.accept(now, o)
	case o.full:
		copy(o.Cmd.Data, msg.Data[o.Cmd.Off-off:])
		m.answer(now, o)
	default:
		o.Heal, o.HealAt, o.stage, o.since = msg.Data, off, stHealWrite, now
		o.waits = false // the read may have been answered by the page cache; this is for the disk, and counts for Dm
		m.storeOps++
		m.act(Action{Kind: ActHeal, Op: o})
	}
}

// accept is for blocks of which there is no good copy elsewhere: those that lost only their
// checksums are taken as they are.
func (m *Machine) accept(now int64, o *Op) {
	delete(m.ops, o.id)
	o.Heal, o.stage, o.since, o.waits = nil, stHealWrite, now, false
	m.storeOps++
	m.act(Action{Kind: ActAccept, Op: o})
}

// healWritten is the end of ActHeal or ActAccept.
func (m *Machine) healWritten(now int64, o *Op, res scsi.Result) {
	healed := o.Heal
	o.Heal = nil
	switch {
	case m.gone():
		m.finish(now, o, scsi.Unavailable)
	case healed != nil && o.Verify && res == scsi.Damaged:
		m.healBeyond(now, o)
	case healed != nil && o.Verify && res == scsi.NoSpace: // to continue would overwrite the one good copy
		m.resyncStop(now, "this node has no space to rewrite a block of which only node "+m.cfg.Self.Peer().String()+" has a good copy: free space in the backing volume")
		m.finish(now, o, scsi.Unavailable)
	case res == scsi.Unavailable: // deleted meanwhile, which is no failure of the disk: the second look says so too
		o.healed = true
		m.healResume(o)
	case healed == nil && (res == scsi.OK || res == scsi.Damaged):
		// What does not match in the second look is lost: it names the place, for of several runs
		// some may have been taken. Of members only one block was asked about if it was taken, and
		// others may have to be healed.
		o.healed = res == scsi.Damaged || m.phase != Paired
		o.Bad, o.since = nil, now
		m.healResume(o)
	case healed == nil && (res == scsi.WriteError || res == scsi.ReadError): // of the disk, not of these blocks
		if o.scrub {
			o.skip = SkipUnreadable
		}
		m.diskFailed(now, o, res)
	case healed == nil:
		m.lost(now, o)
	case res == scsi.OK:
		m.Stats.Healed++
		m.damageEvent(&Damage{LUN: o.LUN, Runs: []scsi.Range{{Off: o.HealAt, Len: int64(len(healed))}}},
			"LUN %s at %d+%d did not match its checksums and was healed from node %s", o.LUN, o.HealAt, len(healed), m.cfg.Self.Peer())
		if o.Verify {
			m.Stats.HealedFromJoiner++
		}
		o.healedTo(o.HealAt + int64(len(healed)))
		m.healNext(now, o)
	case res == scsi.NoSpace && o.Cmd.Kind == scsi.OpRead && !o.copy: // a snapshot shares it: answered, and healed another time
		o.full = true
		m.healNext(now, o)
	case res == scsi.NoSpace && o.scrub:
		o.skip = SkipUnrepaired
		m.finish(now, o, scsi.Unavailable)
	case res == scsi.NoSpace:
		o.result = res
		m.answer(now, o)
	default:
		m.diskFailed(now, o, scsi.WriteError)
	}
}

// lost ends an op whose blocks are good nowhere.
func (m *Machine) lost(now int64, o *Op) {
	m.Stats.LostBlocks++
	at := o.Cmd.Off
	if len(o.Bad) > 0 {
		at = max(at, o.Bad[0].Off)
	}
	where := "and no other copy exists"
	if m.phase == Paired {
		where = "neither does the copy on node " + m.cfg.Self.Peer().String()
	}
	m.damageEvent(m.lostRuns(o, at), "LUN %s at byte %d, block %d: the content does not match its checksum, %s: restore it from a backup, or write it again", o.LUN, at, at/512, where)
	if o.scrub {
		o.skip = SkipUnreadable
		m.finish(now, o, scsi.Unavailable)
		return
	}
	o.Cmd.BadAt, o.Cmd.Located = at, true
	o.result = scsi.ReadError
	m.answer(now, o)
}

// lostRuns are the blocks that an op found good nowhere: those of its last look, or the one at a
// place. While there is a partner it is that one, for behind it there may be others, which the
// partner was not asked for.
func (m *Machine) lostRuns(o *Op, at int64) *Damage {
	if len(o.Bad) > 0 && m.phase != Paired {
		return &Damage{LUN: o.LUN, Lost: true, Runs: slices.Clone(o.Bad)}
	}
	off, end := m.wide(at, at+1)
	return &Damage{LUN: o.LUN, Lost: true, Runs: []scsi.Range{{Off: off, Len: end - off}}}
}

// copyBad sends a range of which the source has lost blocks: the joiner gets the rest, and these as
// bad, so that a resync from a lone source ends and no garbage gets a checksum.
func (m *Machine) copyBad(now int64, o *Op) {
	if !m.link.peer.Sums {
		m.resyncStop(now, "blocks on this node do not match their checksums, and the joiner keeps no checksums, so it would store the damaged blocks as good: start the joiner with checksums, or write the blocks again")
		m.finish(now, o, scsi.ReadError)
		return
	}
	m.damageEvent(m.lostRuns(o, o.Cmd.Off), "LUN %s: %d runs of blocks between %d and %d do not match their checksums and are copied as bad", o.LUN, len(o.Bad), o.Cmd.Off, o.Cmd.Off+o.Cmd.Len)
	m.ops[o.id] = o
	m.copySend(o)
}
