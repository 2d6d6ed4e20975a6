package sim

import (
	"encoding/binary"
	"encoding/json"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// carryOut begins one action of the machine, other than a send. The memory of x is another action's
// later.
func (h *host) carryOut(x *pair.Action) {
	switch x.Kind {
	case pair.ActReply:
		if a := h.attempts[x.Op]; a != nil {
			h.replied(a, h.served)
			h.ended(a)
			delete(h.attempts, x.Op)
			a.answered()
		}
	case pair.ActStore:
		h.starts(x.Op)
		if x.Op.Cmd.Kind == scsi.OpRead {
			h.read(x.Op)
		} else {
			h.write(x.Op, x.Durable)
		}
	case pair.ActCompare:
		h.starts(x.Op)
		h.compare(x.Op)
	case pair.ActCopyRead:
		h.readBack(x.Op, false)
	case pair.ActRepairRead:
		h.readBack(x.Op, true)
	case pair.ActCopyFree:
		scribble(x.Op.Buf)
		x.Op.Buf = nil
	case pair.ActApply:
		h.apply(x.Msg, x.Durable)
	case pair.ActFetch:
		h.w.asked(x.Msg.LUN, x.Msg.Off)
		h.fetch(x.Msg)
	case pair.ActHeal:
		h.healBlock(x.Op)
	case pair.ActAccept:
		h.accept(x.Op)
	case pair.ActCompareSum:
		h.compareSum(x.Msg)
	case pair.ActEvent:
		h.w.trace("%v: %s", h.id, x.Text)
	default:
		h.carryOutRare(*x)
	}
}

// carryOutRare is carryOut for what is rare: what it leaves for later may refer to x.
func (h *host) carryOutRare(x pair.Action) {
	m, w := h.m, h.w
	switch x.Kind {
	case pair.ActProbe:
		h.whenRoom(blockSize, true, func() {
			h.io(ioWrite, 200*us, 15*ms, func(func() bool) {}, func(res scsi.Result) {
				if res == scsi.OK {
					m.Probed(h.clock(), x.ID)
				}
			})
		})
	case pair.ActFlush:
		o := x.Op
		if f := h.atFlush; f != nil && o.Cmd.Nexus.Initiator == "" {
			h.atFlush = nil
			f(int(o.LUN[0]) - 1)
		}
		h.flushing([]pair.LUNID{o.LUN}, x.Durable, func(res scsi.Result) { m.StoreDone(h.clock(), o, res) })
	case pair.ActPeerFlush:
		msg, link, over := x.Msg, h.linkN, h.owes(x.Msg)
		done := h.forPeer(func(m *pair.Machine, res scsi.Result) {
			over()
			m.Applied(h.clock(), link, msg, res)
		})
		if msg.Flags&pair.FlagProbe != 0 {
			h.whenRoom(blockSize, true, func() { h.io(ioWrite, 200*us, 15*ms, func(func() bool) {}, done) })
			break
		}
		h.flushing([]pair.LUNID{msg.LUN}, msg.Flags&pair.FlagSums != 0, done)
	case pair.ActFlushAll:
		h.flushAll(x.Msg)
	case pair.ActSaveEpoch:
		e := x.Record.Epoch
		rec, acts, life, id := *x.Record, x.Durable, x.State, x.ID
		if h.broken {
			h.saving(func() {}, func() { m.EpochSaved(h.clock(), e, false) })
			return
		}
		h.saving(func() {
			h.saveState(id, life)
			if e < h.disk.epoch {
				return
			}
			if h.disk.epoch, h.disk.record = e, &rec; acts {
				h.disk.acted = &rec
			}
		}, func() { m.EpochSaved(h.clock(), e, true) })
	case pair.ActArbiterGet, pair.ActArbiterCAS:
		w.arb.call(h, x)
	case pair.ActAppend:
		h.appendEntry(x.Index, x.Meta, x.Joining)
	case pair.ActShow:
		h.showEntry(x.Index)
	case pair.ActProposed:
		if f := h.moves[x.ID]; f != nil {
			delete(h.moves, x.ID)
			var index uint64
			if len(x.Meta) == 8 {
				index = binary.BigEndian.Uint64(x.Meta)
			}
			f(x.Result, index)
		}
	case pair.ActInstall:
		h.install(x.Msg)
	case pair.ActExport:
		life := h.life
		h.listed = nil
		w.after(w.between(50*us, ms), func() {
			h.when(life, func() {
				raw, err := json.Marshal(h.disk.meta)
				if err != nil {
					panic(err) // plain data
				}
				m.SendMeta(h.clock(), h.disk.meta.Index, raw, nil, h.objects())
			})
		})
	case pair.ActResyncList:
		life := h.life
		w.after(50*us, func() { h.when(life, func() { m.ResyncObjects(h.clock(), h.lists()) }) })
	case pair.ActIntend:
		h.intend(x.LUN, x.Regions)
	case pair.ActClear:
		h.disk.bits[x.LUN[0]-1].And(x.Keep)
		if h.atClear != nil {
			h.atClear()
			h.atClear = nil
		}
	case pair.ActSaveState:
		id, life, ok := x.ID, x.State, !h.broken
		h.saving(func() {
			if ok {
				h.saveState(id, life)
			}
		}, func() { m.StateSaved(h.clock(), id, ok) })
	case pair.ActProve:
		l := x.Alive
		l.Ask(func() { m.Proved(h.clock(), l) })
	case pair.ActMarkLost:
		h.markLost(x.Units)
	case pair.ActTakeAll:
		h.propose(entry{All: true, To: h.id}, func(scsi.Result) {})
	case pair.ActDrain:
		life, id := h.life, x.ID
		w.after(w.between(20*us, ms), func() { h.when(life, func() { m.Drained(h.clock(), id) }) })
	case pair.ActQuiet:
		if f := h.quiets[x.ID]; f != nil {
			delete(h.quiets, x.ID)
			f(x.Result)
		}
	case pair.ActDropHosts:
		w.mark(markDropHosts)
		for _, c := range w.clients {
			c.dropped(h.id)
		}
	case pair.ActProveHosts:
		h.proveHosts()
	case pair.ActDropLink:
		w.net.drop("node " + h.id.String() + ": " + x.Text)
	}
}

// flushAll makes everything durable, for the source of a resync or for this node itself.
func (h *host) flushAll(msg *pair.Msg) {
	w, m, link := h.w, h.m, h.linkN
	if msg == nil {
		h.flushing(h.objectIDs(), false, func(res scsi.Result) { m.SelfFlushed(h.clock(), res == scsi.OK) })
		return
	}
	h.flushedAll = w.now
	h.flushing(h.objectIDs(), true, h.forPeer(func(m *pair.Machine, res scsi.Result) {
		if res == scsi.OK && !h.broken {
			h.copiedTo()
			clear(h.disk.recreated)
		}
		if res == scsi.OK && !h.broken && (h.disk.untrusted || h.disk.old) {
			h.disk.untrusted, h.disk.old = false, false // a full copy is on stable storage now (R12)
			w.mark(markTrusted)
		}
		m.Applied(h.clock(), link, msg, res)
	}))
}

func (h *host) install(msg *pair.Msg) {
	link := h.linkN
	var state metaState
	if err := json.Unmarshal(msg.Meta, &state); err != nil {
		h.w.fail("metadata: %v", err)
		return
	}
	done := h.forPeer(func(m *pair.Machine, res scsi.Result) {
		m.Installed(h.clock(), link, state.Index, h.units(), h.incomplete(), res)
	})
	h.installed, h.flushedAll = h.w.now, 0
	lo, hi := h.takes(ms, 20*ms)
	h.later(lo, hi, func(func() bool) { h.replaceMeta(state.clone()) }, func() { done(scsi.OK) })
}

// entry is a log entry of the simulation: a change of ownership, hosts that are to get the error of
// a loss, or one that has published a LUN again.
type entry struct {
	All     bool      `json:"all,omitempty"`
	LUN     int       `json:"lun,omitempty"`
	To      pair.Node `json:"to,omitempty"`
	Lost    []int     `json:"lost,omitempty"`
	Publish uint64    `json:"publish,omitempty"` // the host's bit
	Snap    int       `json:"snap,omitempty"`    // slot of a snapshot of LUN, from 1
	Step    snapStep  `json:"step,omitempty"`
	Born    uint64    `json:"born,omitempty"` // of the object that it means
	Group   groupStep `json:"group,omitempty"`
	Attempt uint64    `json:"attempt,omitempty"` // of the group, also of an object that is made for it
	Members []member  `json:"members,omitempty"`
	Note    uint64    `json:"note,omitempty"` // changes nothing
}

func (h *host) propose(e entry, done func(scsi.Result)) {
	h.proposeFor(e, func(res scsi.Result, _ uint64) { done(res) })
}

// proposeFor proposes an entry whose index matters.
func (h *host) proposeFor(e entry, done func(res scsi.Result, index uint64)) {
	raw, err := json.Marshal(e)
	if err != nil {
		panic(err) // plain data
	}
	if h.shares(string(raw), done) {
		return
	}
	id := h.m.Propose(h.clock(), raw)
	h.moves[id] = done
	h.shared(string(raw), id)
}

// transfer moves a LUN away, as the runtime does it.
func (h *host) transfer(lun int) {
	h.holding(lun, h.m.Quiesce, func() {}, func(_ uint64, release func()) {
		h.moving++
		h.propose(entry{LUN: lun, To: h.id.Peer()}, func(res scsi.Result) {
			h.moving--
			h.w.trace("transfer of LUN %d to %v: %s", lun+1, h.id.Peer(), resultName(res))
			release()
		})
	})
}

// holding does f while a quiesce of a LUN stands, or, if that cannot be, refused.
func (h *host) holding(lun int, quiesce func(now int64, id uint64, luns []pair.LUNID, limit int64), refused func(), f func(q uint64, release func())) {
	h.when(h.life, func() {
		h.nextID++
		q := h.nextID
		h.quiets[q] = func(res scsi.Result) {
			if res == scsi.OK {
				f(q, func() { h.m.Release(h.clock(), q) })
			} else {
				refused()
			}
		}
		quiesce(h.clock(), q, []pair.LUNID{h.w.luns[lun]}, 1500*ms)
	})
}
