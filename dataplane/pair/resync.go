package pair

import (
	"fmt"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Readmission: the lone member gives its whole metadata to the joiner, copies the regions in which
// the two stores may differ, each range under its lock from the read to the joiner's answer (R7),
// has the joiner make all of it durable, and asks the arbiter for {a,b} again. From the moment the
// joiner has the metadata every new write is mirrored to it as well, so the copy runs once over
// each range. Which regions: the union of both nodes' bits if the joiner's store is the counterpart
// that they are relative to (R6), else all. copy.go copies them.

type resyncStage uint8

const (
	rsIdle    resyncStage = iota
	rsInstall             // the joiner installs the metadata
	rsList                // what is there to copy
	rsCopy                // ranges are compared and copied
	rsFlush               // the joiner makes everything durable; the log is barred
	rsRecord              // this node puts it on record
	rsAdmit               // the arbiter is asked
)

// CopyObject is a file that both nodes must hold alike.
type CopyObject struct {
	ID   LUNID
	Size int64  // bytes
	Born uint64 // log index at which it was made: another one under the same id is another object
}

type resyncState struct {
	stage    resyncStage
	mirror   bool        // source: writes go to the joiner too
	durable  bool        // and are durable there before the status (R1c)
	flushing bool        // source: the joiner was asked to make everything durable
	joined   bool        // joiner: the metadata is installed
	install  *Msg        // joiner: waits for our own store work to end (R4)
	gather   *metaGather // joiner: the parts that have come
	send     *metaSend   // source: what is still to send
	retryAt  int64
	admitAt  int64
	movedAt  int64  // the joiner last answered
	saidAt   int64  // when progress was last reported
	listAt   int64  // no look at the objects before
	asked    bool   // the arbiter may have taken {a,b}: nothing is decided until the record has been read
	stopped  bool   // the resync is over unless it has
	why      string // why no resync begins, as last reported

	plan     *copyPlan
	exported []CopyObject // what there was when the metadata was sent
	inflight int
	view     ResyncView
}

// ResyncView is the progress of the present or last resync at its source.
type ResyncView struct {
	Active     bool
	Done       uint64 // bytes compared or copied
	Total      uint64
	Sent       uint64 // bytes that differed and were sent
	Full       bool
	FullReason string
	Started    int64 // CLOCK_BOOTTIME ns
	Finished   int64
}

// stuckAfter is how long a resync may go without an answer of the joiner; a flush of everything is
// the longest step.
const stuckAfter = 60 * time.Second

// joinerReady reports whether the peer is in a phase in which a resync can begin: outside, having
// acted on our record.
func (m *Machine) joinerReady() bool {
	p := &m.link.peer
	return m.link.up && m.link.known && p.Phase == Outside && p.Epoch == m.rec.Epoch && p.Durable >= m.rec.Epoch && !p.Leaving
}

func (m *Machine) resyncBegin(now int64) {
	r := &m.resync
	if m.peerWaits(now) || r.stage != rsIdle || now < r.retryAt || m.log.cur != nil || m.log.stage != logIdle || m.exposed > 0 || m.arb.busy || m.leave.why != "" || m.marking || m.holdTill != 0 {
		return // tickResync tries again
	}
	if why := m.olderThan(&m.link.peer); why != "" {
		r.retryAt = now + int64(m.cfg.MirrorMax)
		m.Stats.RolledBack++
		m.reason = why
		m.event("no resync: %s", why)
		return
	}
	if why := m.cfg.Misfits; why != "" { // what is missing here must not be copied over what the joiner may have
		r.retryAt = now + int64(m.cfg.MirrorMax)
		if m.resync.why != why {
			m.resync.why = why
			m.event("no resync: %s", why)
		}
		return
	}
	if !m.ownsAll() {
		r.retryAt = now + int64(m.cfg.Lease)
		m.act(Action{Kind: ActTakeAll})
		return
	}
	m.copies++
	why := m.fullReason()
	*r = resyncState{stage: rsInstall, movedAt: now, view: ResyncView{Active: true, Full: why != "", FullReason: why, Started: now}}
	if why == "" {
		m.Stats.PartialResyncs++
		m.event("resync to node %s started: regions written since the node left", m.cfg.Self.Peer())
	} else {
		m.Stats.FullResyncs++
		m.event("resync to node %s started: everything, because %s", m.cfg.Self.Peer(), why)
	}
	m.act(Action{Kind: ActExport})
}

// SendMeta gives the whole metadata as it is at index, and the objects that it names, for
// ActExport. sum is a checksum of it, which the joiner's runtime knows how to compare; nil for a
// peer that does not know parts.
func (m *Machine) SendMeta(now int64, index uint64, meta, sum []byte, objs []CopyObject) {
	switch why := m.tooLarge(len(meta), sum != nil); {
	case m.resync.stage != rsInstall || m.phase != Alone:
	case why != "":
		m.metaRefused(now, why)
	default:
		m.resync.exported = objs
		m.planBegin()
		m.metaBegin(now, index, meta, sum)
	}
	m.settle(now)
}

func (m *Machine) tickResync(now int64) {
	r := &m.resync
	if m.phase == Alone && m.reason == "" {
		m.reason = m.cfg.Misfits
	}
	if m.phase == Alone && m.joinerReady() {
		m.resyncBegin(now)
	}
	if moving := r.stage != rsIdle && r.stage != rsAdmit; moving && now-r.movedAt > int64(stuckAfter) {
		m.peerFailed(now)
		m.resyncStop(now, "the joiner did not answer for too long")
	}
	// Once it has asked, the record decides, also after a conflict: the request may have landed,
	// and what was heard be the answer to its repetition. Asking again would give this node another
	// part of a lease to serve, while the peer may be a member and exclude it.
	if m.resync.stage == rsAdmit && !m.resync.asked && !m.arb.busy && !m.saved.saving && m.arb.want == nil && m.phase == Alone {
		m.admit(now)
	}
	if r := &m.resync; r.stage == rsCopy && now-r.saidAt > progressEvery {
		if r.saidAt != 0 {
			m.event("resync to node %s: %s", m.cfg.Self.Peer(), progress(now, r.view.Started, r.view.Done, r.view.Total))
		}
		r.saidAt = now
	}
	m.copyNext(now)
	m.installNow(now)
}

// progressEvery is how often a long work says how far it is.
const progressEvery = int64(10 * time.Second)

// progress says how far a work is, how fast it goes and how long it will take at that rate.
func progress(now, started int64, done, total uint64) string {
	took := time.Duration(now - started)
	if done == 0 || total == 0 || took <= 0 {
		return fmt.Sprintf("0 of %d bytes", total)
	}
	left := time.Duration(float64(took) * float64(total-min(done, total)) / float64(done))
	return fmt.Sprintf("%d%% of %d bytes, %.0f MiB/s, %v left", 100*done/total, total, float64(done)/took.Seconds()/(1<<20), left.Round(time.Second))
}

func (m *Machine) onResync(now int64, msg *Msg) {
	if msg.Flags&FlagScrub != 0 && (msg.Type == MsgCopySum || msg.Type == MsgCopyData) {
		m.onScrub(now, msg)
		return
	}
	if o := m.ops[msg.ID]; o != nil && o.scrub && m.phase == Paired {
		switch msg.Type {
		case MsgCopyNeed:
			m.scrubCompared(now, o, msg)
		case MsgCopyAck:
			m.scrubRepaired(now, o, msg)
		}
		return
	}
	r := &m.resync
	source := m.phase == Alone && r.stage != rsIdle
	r.movedAt = now
	joiner := m.phase == Outside
	switch msg.Type {
	case MsgMetaInstall:
		if joiner {
			m.forceEnds()
			r.joined, r.install = false, nil
			if msg.Flags&FlagParts == 0 || m.metaWhole(msg) {
				r.install, r.gather = msg, nil
				m.installNow(now)
			}
		}
	case MsgMetaPart:
		if joiner {
			m.onMetaPart(msg)
		}
	case MsgMetaAck:
		if source && r.stage == rsInstall && msg.Flags&FlagParts != 0 {
			if r.send != nil && msg.Aux == r.send.index {
				m.metaNext(now)
			}
			return
		}
		if source && r.stage == rsInstall {
			r.send = nil
			if msg.Result != scsi.OK {
				m.resyncStop(now, "the joiner could not install the metadata")
				return
			}
			if !m.planObjects(now, msg.Meta) {
				return
			}
			r.mirror, r.stage = true, rsCopy
			m.pump(now)
		}
	case MsgDirty:
		if source && r.stage == rsInstall {
			m.planDirty(now, msg)
		}
	case MsgCopySum:
		if joiner && r.joined {
			m.applying++
			m.act(Action{Kind: ActCompareSum, Msg: msg})
		}
	case MsgCopyData:
		if joiner && r.joined {
			m.applying++
			m.act(Action{Kind: ActApply, Msg: msg})
		}
	case MsgFlushAll:
		if joiner && r.joined {
			m.applying++
			m.act(Action{Kind: ActFlushAll, Msg: msg})
		}
	case MsgCopyNeed:
		if o := m.ops[msg.ID]; source && o != nil && o.copy {
			m.copyNeed(now, o, msg)
		}
	case MsgCopyAck:
		if o := m.ops[msg.ID]; source && o != nil && o.copy {
			if msg.Result != scsi.OK {
				m.peerFailed(now)
				m.resyncStop(now, "the joiner's store failed to write a range")
				return
			}
			m.finish(now, o, scsi.OK)
		}
	case MsgFlushAllAck:
		if source && r.stage == rsFlush {
			if msg.Result != scsi.OK {
				m.peerFailed(now)
			}
			if msg.Result != scsi.OK || uint64(msg.Aux) != m.log.index {
				m.resyncStop(now, "the joiner could not flush the copy")
				return
			}
			m.copied(now)
		}
	}
}

// installNow begins the installation once none of our own store work is left: no straggling write
// of an earlier life as a member lands on the copy (R4).
func (m *Machine) installNow(now int64) {
	r := &m.resync
	if m.arb.want != nil { // what this node has asked for may be a record of its own, by force: it is that or a joiner, not both
		return
	}
	if r.install == nil || m.storeOps > 0 || m.applying > 0 || m.phase != Outside || m.log.stage != logIdle || m.installing {
		return
	}
	m.act(Action{Kind: ActInstall, Msg: r.install})
	r.install, m.installing = nil, true
}

// Installed reports ActInstall. full are the objects whose content here is not of the lineage of
// the source's: they were missing, or are others under the same id.
func (m *Machine) Installed(now int64, link uint64, index uint64, units []UnitInfo, full []LUNID, res scsi.Result) {
	m.installing = false
	if res == scsi.OK {
		// Whatever has become of the link, this is what is here now.
		m.log.index = index
		if m.phase == Outside {
			m.log.cur = nil
			m.replaceUnits(now, units, full)
		} else {
			m.SetUnits(now, units)
		}
	}
	if link == m.link.number && m.link.up && m.phase == Outside {
		if res == scsi.OK {
			m.resync.joined = true
			m.claimed = claimNone
			m.reason = "the other node copies its data to this node"
			full = m.sendDirty(full)
		}
		m.send(&Msg{Type: MsgMetaAck, Result: res, Meta: encodeIDs(full)})
	}
	m.pump(now)
	m.settle(now)
}

// replaceUnits takes the units of the metadata that were installed. Nothing is at work: this node
// is no member.
func (m *Machine) replaceUnits(now int64, units []UnitInfo, full []LUNID) {
	old := m.units
	m.units = map[LUNID]*unit{}
	m.order = nil
	m.SetUnits(now, units)
	for id, u := range m.units {
		if o := old[id]; o != nil && !slices.Contains(full, id) {
			u.intents = o.intents // the bits on disk are as they were; those of an object made again are not
		}
	}
}

// sendDirty tells the source which regions this node may have changed. An object with too scattered
// bits is copied whole.
func (m *Machine) sendDirty(full []LUNID) []LUNID {
	for _, u := range m.sortedUnits() {
		if u.intents.hot.Empty() {
			continue
		}
		if raw := u.intents.hot.Encode(); len(raw) <= maxDirty {
			m.send(&Msg{Type: MsgDirty, LUN: u.id, Meta: raw})
		} else {
			full = append(full, u.id)
		}
	}
	return full
}

// SumDone reports ActCompareSum.
func (m *Machine) SumDone(now int64, link uint64, msg *Msg, need bool, res scsi.Result) {
	m.waited(now, msg)
	m.applyEnded(now)
	if link == m.link.number && m.link.up {
		aux := int64(0)
		if need {
			aux = 1
		}
		m.send(&Msg{Type: MsgCopyNeed, ID: msg.ID, Aux: aux, Result: res})
	}
	m.settle(now)
}

// ResyncObjects answers ActResyncList with everything that must be alike: what was made since the
// metadata was sent is compared whole, for the joiner may have made it from what had not been
// copied yet.
func (m *Machine) ResyncObjects(now int64, objs []CopyObject) {
	r := &m.resync
	if r.stage != rsList || m.phase != Alone {
		return
	}
	switch {
	case m.planMore(objs):
		r.stage = rsCopy
	case !m.ownsAll():
		r.stage, r.listAt = rsCopy, now+int64(m.cfg.Lease)/2
		m.act(Action{Kind: ActTakeAll})
	default:
		r.stage, r.durable, r.flushing = rsFlush, true, false
		m.flushJoiner()
	}
	m.copyNext(now)
	m.settle(now)
}

// flushJoiner has the joiner make everything durable, once the entry that is under way is at both
// nodes: the joiner may have it long before a slow disk here, and is admitted at an equal index
// only. No other entry begins meanwhile.
func (m *Machine) flushJoiner() {
	r := &m.resync
	if r.stage != rsFlush || r.flushing || m.log.cur != nil || m.log.stage != logIdle {
		return
	}
	r.flushing = true
	m.send(&Msg{Type: MsgFlushAll})
}
