package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/target/pair"
	"github.com/gemel-storage/gemel/target/scsi"
)

// host is one node: a disk that outlives its processes, a clock of its own, and the machine of the present life.
type host struct {
	w      *world
	id     pair.Node
	disk   *disk
	m      *pair.Machine
	life   int // counts processes
	boots  int // counts boots of the operating system
	rate   float64
	offset int64
	frozen int64 // stopped (SIGSTOP) until then
	late   []func()
	linkUp bool
	linkN  uint64
	slow   int64 // added to every disk operation
	full   bool  // writes of hosts find no space

	attempts map[*pair.Op]*attempt // of hosts, at this node
	moves    map[uint64]func(scsi.Result)
	quiets   map[uint64]func(scsi.Result)
	nextID   uint64
	moving   int // transfers whose outcome is open
}

func newHost(w *world, id pair.Node) *host {
	return &host{w: w, id: id, disk: newDisk(fmt.Sprintf("store-%v", id), w.cfg.LUNs),
		rate: 1 + (w.rnd.Float64()-0.5)*0.008, offset: w.rnd.Int64N(1000 * s)}
}

// clock is this node's CLOCK_BOOTTIME: bounded rate drift, no agreement (R3).
func (h *host) clock() int64 { return h.offset + int64(float64(h.w.now)*h.rate) }

func (h *host) frozenNow() bool { return h.frozen > h.w.now }

// when runs f in a life of the process, later if that is stopped.
func (h *host) when(life int, f func()) {
	if h.life != life || h.m == nil {
		return
	}
	if h.frozenNow() {
		h.late = append(h.late, func() { h.when(life, f) })
		return
	}
	f()
	h.drain()
}

// boot starts a process.
func (h *host) boot() {
	if h.m != nil {
		return
	}
	h.life++
	h.attempts, h.moves, h.quiets = map[*pair.Op]*attempt{}, map[uint64]func(scsi.Result){}, map[uint64]func(scsi.Result){}
	h.late, h.frozen, h.linkUp, h.moving = nil, 0, false, 0
	inc := pair.Incarnation{Boot: fmt.Sprintf("boot-%v-%d", h.id, h.boots), Nonce: h.w.rnd.Uint64() | 1}
	h.m = pair.New(pair.Config{Self: h.id, Cluster: "c", Pair: "p", Store: h.disk.id, Incarnation: inc,
		Previous: h.disk.previous, DurableEpoch: h.disk.epoch, LogIndex: h.disk.meta.Index, Empty: h.disk.empty,
		Start: h.clock(), Preferred: h.id == pair.A, Life: h.disk.life, Known: h.disk.record, Acted: h.disk.acted, Region: 2 * blockSize,
		CheckpointIdle: 30 * time.Millisecond, CheckpointEvery: 300 * time.Millisecond, CheckpointDirty: 40 * blockSize, CheckpointHot: 2, Check: func(*scsi.Op, pair.LUNID) scsi.Result { return scsi.OK }})
	h.disk.previous = inc
	h.disk.empty = false
	h.w.trace("node %v starts (life %d, boot %d)", h.id, h.life, h.boots)
	h.disk.lifeID = 0
	h.m.SetUnits(h.clock(), h.units())
	for _, l := range h.w.luns {
		h.m.LoadIntents(l, h.disk.intents[l])
	}
	h.m.Start(h.clock())
	h.m.SetNexuses(1)
	h.drain()
	h.tick(h.life)
	h.w.net.connectLater()
}

func (h *host) units() (out []pair.UnitInfo) {
	for i, u := range h.disk.meta.Units {
		out = append(out, pair.UnitInfo{ID: h.w.luns[i], Owner: u.Owner, Seq: u.Seq, Size: int64(h.w.cfg.Blocks) * blockSize})
	}
	return out
}

func (h *host) tick(life int) {
	h.w.after(h.w.between(15*ms, 25*ms), func() {
		if h.life != life || h.m == nil {
			return
		}
		if h.frozenNow() {
			h.late = append(h.late, func() { h.tick(life) })
			return
		}
		h.m.Tick(h.clock())
		h.drain()
		h.tick(life)
	})
}

// kill ends the process; power also loses the page cache.
func (h *host) kill(power bool) {
	if h.m == nil {
		return
	}
	h.w.trace("node %v dies (power %v)", h.id, power)
	h.addStats()
	h.m = nil
	h.life++
	if power {
		h.boots++
		h.disk.cut(func() bool { return h.w.chance(0.5) })
	}
	h.w.net.drop("a node died")
	for _, c := range h.w.clients {
		c.nodeDied(h.id)
	}
}

func (h *host) freeze(d int64) {
	if h.m == nil {
		return
	}
	h.w.trace("node %v stops for %v", h.id, d/ms)
	life := h.life
	h.frozen = h.w.now + d
	h.w.after(d, func() { h.thaw(life) })
}

// thaw lets everything that waited happen, in order.
func (h *host) thaw(life int) {
	if h.life != life || h.m == nil || h.frozenNow() {
		return
	}
	late := h.late
	h.late = nil
	h.w.trace("node %v goes on", h.id)
	for _, f := range late {
		if h.life == life {
			f()
		}
	}
}

func (h *host) addStats() {
	if h.m == nil {
		return
	}
	addStats(&h.w.res.Stats, &h.m.Stats)
}

func (h *host) linkUpAt(n uint64) {
	h.when(h.life, func() {
		h.linkUp, h.linkN = true, n
		h.m.LinkUp(h.clock(), n)
	})
}

func (h *host) linkDown(n uint64, reset bool) {
	h.when(h.life, func() {
		if h.linkUp && h.linkN == n {
			h.linkUp = false
			h.m.LinkDown(h.clock(), n, reset)
		}
	})
}

func (h *host) arrive(n uint64, msg *pair.Msg) {
	h.when(h.life, func() {
		if h.linkUp && h.linkN == n {
			h.m.Receive(h.clock(), n, msg)
		}
	})
}

// later is a disk operation: it ends after a while, unless the process died, in which case it may have happened.
func (h *host) later(lo, hi int64, effect, done func()) {
	life := h.life
	happens := h.w.chance(0.5)
	boots := h.boots
	h.w.after(h.w.between(lo, hi)+h.slow, func() {
		if h.life != life {
			if happens && h.boots == boots && h.m == nil {
				effect()
			}
			return
		}
		effect() // the kernel works on while the process is stopped
		h.when(life, done)
	})
}

// drain carries out what the machine asks for.
func (h *host) drain() {
	for h.m != nil && h.m.Pending() {
		for _, x := range h.m.Take(nil) {
			h.carryOut(x)
		}
	}
}

func (h *host) carryOut(x pair.Action) {
	m, w := h.m, h.w
	link := h.linkN
	switch x.Kind {
	case pair.ActSend:
		w.net.send(h.id, link, x.Msg)
	case pair.ActReply:
		if a := h.attempts[x.Op]; a != nil {
			delete(h.attempts, x.Op)
			a.answered(x.Op.S.Result)
		}
	case pair.ActStore:
		h.store(x.Op, x.Durable)
	case pair.ActFlush:
		h.flushOp(func() { h.disk.flush(x.Op.LUN) }, func() { m.StoreDone(h.clock(), x.Op, scsi.OK) })
	case pair.ActCopyRead:
		h.later(50*us, 2*ms, func() {
			off, n := x.Op.Range()
			x.Op.Buf = h.disk.read(x.Op.LUN, off, n)
			if x.Op.Hole = x.Op.Buf == nil; !x.Op.Hole {
				x.Op.Sum = sum(x.Op.Buf)
			}
		}, func() { m.StoreDone(h.clock(), x.Op, scsi.OK) })
	case pair.ActRepairRead:
		h.later(10*us, ms, func() {
			off, n := x.Op.Range()
			if x.Op.Buf = h.disk.read(x.Op.LUN, off, n); x.Op.Buf == nil {
				x.Op.Buf = make([]byte, n)
			}
		}, func() { m.StoreDone(h.clock(), x.Op, scsi.OK) })
	case pair.ActApply:
		msg := x.Msg
		res := scsi.OK
		if msg.Type == pair.MsgMirror && msg.Flags&pair.FlagRepair == 0 {
			res = h.space()
		}
		torn := res != scsi.OK && w.chance(0.5)
		h.later(10*us, ms, func() {
			if res == scsi.OK || torn {
				h.disk.write(msg.LUN, msg.Off, msg.Data, x.Durable)
			}
		}, func() { m.Applied(h.clock(), link, msg, res) })
	case pair.ActPeerFlush:
		h.flushOp(func() { h.disk.flush(x.Msg.LUN) }, func() { m.Applied(h.clock(), link, x.Msg, scsi.OK) })
	case pair.ActCompareSum:
		h.compareSum(x.Msg, link)
	case pair.ActFlushAll:
		h.flushOp(h.disk.flushAll, func() {
			if x.Msg != nil {
				m.Applied(h.clock(), link, x.Msg, scsi.OK)
			} else {
				m.SelfFlushed(h.clock(), true)
			}
		})
	case pair.ActSaveEpoch:
		e := x.Record.Epoch
		rec, acts := *x.Record, x.Durable
		h.later(200*us, 10*ms, func() {
			if e > h.disk.epoch {
				if h.disk.epoch, h.disk.record = e, &rec; acts {
					h.disk.acted = &rec
				}
			}
		}, func() { m.EpochSaved(h.clock(), e, true) })
	case pair.ActArbiterGet, pair.ActArbiterCAS:
		w.arb.call(h, x)
	case pair.ActAppend:
		h.later(200*us, 10*ms, func() { h.applyEntry(x.Index, x.Meta) },
			func() { m.Appended(h.clock(), x.Index, scsi.OK, nil, h.units()) })
	case pair.ActProposed:
		if f := h.moves[x.ID]; f != nil {
			delete(h.moves, x.ID)
			f(x.Result)
		}
	case pair.ActInstall:
		h.install(x.Msg, link)
	case pair.ActExport:
		life := h.life
		w.after(w.between(50*us, ms), func() {
			h.when(life, func() {
				raw, _ := json.Marshal(h.disk.meta)
				m.SendMeta(h.clock(), h.disk.meta.Index, raw, h.objects())
			})
		})
	case pair.ActResyncList:
		life := h.life
		w.after(50*us, func() { h.when(life, func() { m.ResyncObjects(h.clock(), h.objects()) }) })
	case pair.ActIntend:
		l, regions := x.LUN, x.Regions
		h.later(100*us, 8*ms, func() {
			bits := h.disk.intents[l].Clone()
			for _, r := range regions {
				bits.Add(int(r))
			}
			h.disk.intents[l] = bits
		}, func() { m.Intended(h.clock(), l, true) })
	case pair.ActClear:
		bits := h.disk.intents[x.LUN].Clone()
		bits.And(x.Keep)
		h.disk.intents[x.LUN] = bits
	case pair.ActSaveLife:
		h.later(200*us, 10*ms, func() {
			if x.ID > h.disk.lifeID {
				h.disk.life, h.disk.lifeID = x.Life, x.ID
			}
		}, func() { m.LifeSaved(h.clock(), x.ID, true) })
	case pair.ActMarkLost:
		w.res.Faults["lost data"]++
		w.trace("node %v may have lost data", h.id)
		life := h.life
		w.after(ms, func() { h.when(life, func() { m.LostMarked(h.clock()) }) })
	case pair.ActTakeAll:
		h.propose(entry{All: true, To: h.id}, func(scsi.Result) {})
	case pair.ActDrain:
		life := h.life
		w.after(w.between(20*us, ms), func() { h.when(life, func() { m.Drained(h.clock(), x.ID) }) })
	case pair.ActQuiet:
		if f := h.quiets[x.ID]; f != nil {
			delete(h.quiets, x.ID)
			f(x.Result)
		}
	case pair.ActDropHosts:
		for _, c := range w.clients {
			c.dropped(h.id)
		}
	case pair.ActDropLink:
		w.net.drop("node " + h.id.String() + ": " + x.Text)
	case pair.ActEvent:
		w.trace("%v: %s", h.id, x.Text)
	}
}

func (h *host) flushOp(effect, done func()) {
	// What is written while the flush is under way may or may not be in it: the least is what was there before.
	effect()
	h.later(300*us, 20*ms, func() {}, done)
}

func (h *host) store(o *pair.Op, durable bool) {
	m := h.m
	b := o.S.Off
	if o.S.Kind == scsi.OpRead {
		h.later(10*us, 500*us, func() {
			if d := h.disk.read(o.LUN, b, blockSize); d != nil {
				copy(o.S.Data, d)
			} else {
				clear(o.S.Data)
			}
		}, func() { m.StoreDone(h.clock(), o, scsi.OK) })
		return
	}
	lo, hi := 10*us, ms
	if durable {
		lo, hi = 200*us, 15*ms
	}
	data := append([]byte(nil), o.S.Data...)
	res := h.space()
	torn := res != scsi.OK && h.w.chance(0.5)
	h.later(lo, hi, func() {
		if res == scsi.OK || torn {
			h.disk.write(o.LUN, b, data, durable)
		}
	}, func() { m.StoreDone(h.clock(), o, res) })
}

// space tells whether a write finds space. One that does not may have changed some of its range before it knew.
func (h *host) space() scsi.Result {
	if h.full && h.w.chance(0.5) {
		return scsi.NoSpace
	}
	return scsi.OK
}

func (h *host) compareSum(msg *pair.Msg, link uint64) {
	m := h.m
	need := false
	h.later(50*us, 2*ms, func() {
		mine := h.disk.read(msg.LUN, msg.Off, msg.Len)
		if len(msg.Meta) == 0 {
			h.disk.write(msg.LUN, msg.Off, make([]byte, msg.Len), false)
			return
		}
		need = string(sum(mine)) != string(msg.Meta)
	}, func() { m.SumDone(h.clock(), link, msg, need, scsi.OK) })
}

func (h *host) install(msg *pair.Msg, link uint64) {
	m := h.m
	var s metaState
	if err := json.Unmarshal(msg.Meta, &s); err != nil {
		h.w.fail("metadata: %v", err)
		return
	}
	h.later(ms, 20*ms, func() { h.disk.meta = s.clone() },
		func() { m.Installed(h.clock(), link, s.Index, h.units(), nil, scsi.OK) })
}

func (h *host) objects() (objs []pair.CopyObject) {
	for _, l := range h.w.luns {
		objs = append(objs, pair.CopyObject{ID: l, Size: int64(h.w.cfg.Blocks) * blockSize, Born: 1})
	}
	return objs
}

// entry is a log entry of the simulation: a change of ownership.
type entry struct {
	All bool      `json:"all"`
	LUN int       `json:"lun"`
	To  pair.Node `json:"to"`
}

func (h *host) applyEntry(index uint64, raw []byte) {
	var e entry
	if err := json.Unmarshal(raw, &e); err != nil {
		h.w.fail("log entry: %v", err)
		return
	}
	if index != h.disk.meta.Index+1 {
		h.w.fail("node %v applies index %d after %d", h.id, index, h.disk.meta.Index)
	}
	h.disk.meta.Index = index
	for i := range h.disk.meta.Units {
		if u := &h.disk.meta.Units[i]; (e.All || i == e.LUN) && u.Owner != e.To {
			u.Owner = e.To
			u.Seq++
		}
	}
}

func (h *host) propose(e entry, done func(scsi.Result)) {
	raw, _ := json.Marshal(e)
	id := h.m.Propose(h.clock(), raw)
	h.moves[id] = done
	h.drain()
}

// transfer moves a LUN away, as the runtime does it.
func (h *host) transfer(lun int) {
	life := h.life
	h.when(life, func() {
		h.nextID++
		q := h.nextID
		h.quiets[q] = func(res scsi.Result) {
			if res != scsi.OK {
				return
			}
			h.moving++
			h.propose(entry{LUN: lun, To: h.id.Peer()}, func(res scsi.Result) {
				h.moving--
				h.w.trace("transfer of LUN %d to %v: %d", lun+1, h.id.Peer(), res)
				h.m.Release(h.clock(), q)
			})
		}
		h.m.Quiesce(h.clock(), q, []pair.LUNID{h.w.luns[lun]}, 1500*ms)
	})
}
