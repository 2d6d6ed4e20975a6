package sim

import (
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// host is one node: a disk that outlives its processes, a clock of its own, and the machine of the
// present life.
type host struct {
	w      *world
	id     pair.Node
	disk   *disk
	m      *pair.Machine
	life   int // counts processes
	boots  int // counts boots of the operating system
	place  int // counts the places in which the disk has been: another one is another lock
	rate   float64
	offset int64
	stands int64 // what the clock shows while the machine is frozen with its clocks, 0: it runs
	wall   int64 // how far the wall clock is ahead of it
	frozen int64 // stopped (SIGSTOP) until then
	late   []func()
	linkUp bool
	linkN  uint64

	slow    int64 // added to every disk operation
	saves   saveTime
	under   map[string]uint64 // entries that this node has proposed, by their text
	load    backlog
	stopped int64         // the disk answers nothing before
	entry   *entryWork    // of the log, under way
	atFlush func(lun int) // what befalls the node when it begins the flush of a checkpoint that it leads
	atClear func()        // what befalls the node when a checkpoint has taken bits back
	full    bool          // writes of hosts find no space
	errors  ioKind        // what the disk refuses from now on
	broken  bool          // the store has failed in this life: it refuses everything
	failed  bool          // and the machine got the failure
	sick    bool          // the disk has refused something in this life, or hung, or the node leaves
	applies int           // store work for the peer under way: a new link waits for its end (R4)

	attempts map[*pair.Op]*attempt // of hosts, at this node
	moves    map[uint64]func(res scsi.Result, index uint64)
	quiets   map[uint64]func(scsi.Result)
	cut      *cutHold
	nextID   uint64
	moving   int // transfers whose outcome is open

	testimony testimony
	owed      owed
	spare     []pair.Action
	draining  bool
	served    bool // before the machine was given what it is given now

	unanswered int64 // the arbiter has not answered this life since then; 0: it has

	// What the last look at the machine showed (invariant.go).
	phase      pair.Phase
	epoch      uint64
	generation uint64
	excluding  bool
	resyncing  bool
	results    map[uint64]bool  // forwarded commands answered, by number
	refused    map[uint64]bool  // forwarded by the present life, by number: the owner's BUSY has come
	harmed     int64            // when the disk last lost something that it had taken
	snapshot   *disk            // an old copy of the disk
	copied     int64            // when it was made
	held       bool             // an administrator keeps it stopped
	run        supervisor       // what starts the process again when it has ended without a stop
	scrubbing  []scrubbedObject // of the scrub under way
	scrubAt    int64            // when it began
	mismatches uint64           // that the present life has found
	installed  int64            // when the metadata was last replaced by a source's
	flushedAll int64            // when the last flush of everything for the peer began

	whole    [snapSlots]uint64   // marked objects that a resync has made whole in this life, by Born
	compared [snapSlots][]bool   // blocks of incomplete objects that a source has compared in this life
	listed   map[pair.LUNID]bool // what the last list of the present resync names, nil: there is none
	lookAt   int64               // no look at marked objects before (look.go)
	looking  [snapSlots]int64    // nor at this one
}

func newHost(w *world, id pair.Node) *host {
	return &host{w: w, id: id, disk: w.newDisk(id), harmed: -1, saves: usualSave,
		rate: 1 + (w.rnd.Float64()-0.5)*0.008, offset: w.rnd.Int64N(1000 * s)}
}

func (w *world) newDisk(id pair.Node) *disk {
	w.ids++
	pages := 0
	if w.shape.sums {
		pages = w.shape.group
	}
	return newDisk(fmt.Sprintf("store-%v-%d", id, w.ids), w.shape.luns, snapSlots, w.shape.blocks, pages)
}

// lock names the file by which a process holds the disk where it is.
func (h *host) lock() string { return fmt.Sprintf("%s at %d", h.disk.id, h.place) }

// clock is this node's CLOCK_BOOTTIME: bounded rate drift, no agreement (R3).
func (h *host) clock() int64 {
	if h.stands != 0 {
		return h.stands
	}
	return h.offset + int64(float64(h.w.now)*h.rate)
}

// standStill stops the machine with its clocks. The code that resumes it sets the wall clock right
// (R3).
func (h *host) standStill(d int64) bool {
	if !h.freeze(d) {
		return false
	}
	h.stands = h.clock()
	return true
}

// runs lets the clock continue from where it stopped.
func (h *host) runs() (stood bool) {
	if h.stands == 0 {
		return false
	}
	was := h.stands
	h.stands = 0
	by := h.clock() - was
	h.offset -= by
	h.wall += by
	return true
}

func (h *host) frozenNow() bool { return h.frozen > h.w.now || h.stands != 0 }

// when runs f in a life of the process, later if that is stopped.
func (h *host) when(life int, f func()) {
	if h.life != life || h.m == nil {
		return
	}
	if h.frozenNow() {
		h.late = append(h.late, func() { h.when(life, f) })
		return
	}
	h.served = h.m.Serving(h.clock())
	f()
	h.drain()
}

// boot starts a process.
func (h *host) boot() {
	if h.m != nil || h.held || h.w.now < h.run.due {
		return
	}
	w := h.w
	if d := h.testimony.reaping - w.now; d > 0 { // only then is there a next process
		w.after(d, h.boot)
		return
	}
	h.run.started(w.now)
	h.life++
	h.unanswered = 0
	h.under = nil
	h.attempts, h.moves, h.quiets = map[*pair.Op]*attempt{}, map[uint64]func(scsi.Result, uint64){}, map[uint64]func(scsi.Result){}
	h.results, h.refused = map[uint64]bool{}, map[uint64]bool{}
	h.scrubbing, h.mismatches = nil, 0
	h.runs()
	h.owed = owed{}
	h.late, h.frozen, h.linkUp, h.moving, h.applies = nil, 0, false, 0, 0
	h.broken, h.failed, h.sick = false, false, false
	h.phase, h.epoch, h.excluding, h.resyncing, h.installed, h.flushedAll = pair.Starting, 0, false, false, 0, 0
	h.listed, h.cut = nil, nil
	h.whole, h.compared, h.lookAt, h.looking = [snapSlots]uint64{}, [snapSlots][]bool{}, 0, [snapSlots]int64{}
	h.disk.evict(func() bool { h.harmed = w.now; return !w.shape.pagesStay || w.chance(0.5) })
	h.disk.settle()
	h.entry = nil
	inc := pair.Incarnation{Boot: h.bootID(), Nonce: w.rnd.Uint64() | 1}
	cfg := pair.Config{Self: h.id, Cluster: "c", Pair: "p", Store: h.disk.id, Incarnation: inc,
		DurableEpoch: h.disk.epoch, LogIndex: h.disk.meta.Index, Empty: h.disk.meta.Index == 0, Start: h.clock(),
		MirrorMax: duration(w.shape.mirrorMax), Preferred: h.id == pair.A, State: h.disk.life, Known: h.disk.record, Acted: h.disk.acted,
		Lock: h.lock(), Region: w.shape.region * blockSize, CheckpointIdle: duration(w.shape.ckptIdle), CheckpointEvery: duration(10 * w.shape.ckptIdle),
		CheckpointDirty: 40 * blockSize, CheckpointHot: 2, Check: h.check,
		Block: int64(w.shape.group) * blockSize, Sums: w.shape.sums}
	if !w.supervised() { // as it was before a shorter time was the default
		cfg.Polite = duration(500 * ms)
	}
	w.window(&cfg)
	if w.beside() {
		cfg.Granule = blockSize // elsewhere hosts have several sessions by leaving one only
	}
	h.disk.lifeID = 0
	if h.disk.untrusted {
		cfg.Untrusted = "a write or flush failed"
		w.mark(markUntrustedStart)
	}
	if cfg.Misfits = h.disk.misfits(); cfg.Misfits != "" {
		w.mark(markMisfitStart)
	}
	h.m = pair.New(cfg)
	h.disk.previous = inc
	w.trace("node %v starts (life %d, boot %d, %s at epoch %d)", h.id, h.life, h.boots, h.disk.id, h.disk.epoch)
	h.m.SetUnits(h.clock(), h.units())
	for i, l := range w.luns {
		h.m.LoadIntents(l, h.disk.bits[i])
	}
	h.disk.doubts(int(w.shape.region))
	if w.shape.lone {
		h.disk.comesBack()
	}
	h.m.Wall(h.clock(), h.wall)
	h.m.Start(h.clock())
	h.m.SetNexuses(1)
	h.drain()
	h.tick(h.life)
	w.net.connectLater()
}

func (h *host) bootID() string { return fmt.Sprintf("boot-%v-%d", h.id, h.boots) }

func (h *host) units() (out []pair.UnitInfo) {
	for i, u := range h.disk.meta.Units {
		out = append(out, pair.UnitInfo{ID: h.w.luns[i], Owner: u.Owner, Seq: u.Seq, Size: int64(h.w.shape.blocks) * blockSize})
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
		h.turn()
		h.tick(life)
	})
}

// turn is one turn of the process's loop.
func (h *host) turn() {
	h.served = h.m.Serving(h.clock())
	h.m.Wall(h.clock(), h.wall)
	h.m.Tick(h.clock())
	h.refresh()
	h.lookAtCopies()
	h.drain()
	h.observe()
	if h.m != nil {
		h.checkOwed()
	}
}

// kill ends the process; power also loses the page cache.
func (h *host) kill(power bool) {
	if h.m == nil {
		return
	}
	w := h.w
	w.trace("node %v dies (power %v)", h.id, power)
	h.markDeath()
	w.unflip()
	h.addStats()
	h.dies(h.disk.previous, power)
	h.m = nil
	h.life++
	h.disk.copies, h.disk.coming = nil, map[[2]int]stored{}
	w.rotting(func() { h.disk.forget(func() bool { return w.chance(0.3) }) })
	if power {
		h.boots++
		h.harmed = w.now
		h.disk.cut(func() bool { return w.chance(0.5) })
	}
	w.net.drop("a node died")
	for _, c := range w.clients {
		c.nodeDied(h.id)
	}
}

func (h *host) freeze(d int64) bool {
	if h.m == nil || h.frozenNow() {
		return false
	}
	w := h.w
	w.trace("node %v stops for %d ms", h.id, d/ms)
	if h.moving > 0 {
		w.mark(markStopMoving)
	}
	if h.resyncing {
		w.mark(markStopResync)
	}
	life := h.life
	h.frozen = w.now + d
	w.after(d, func() { h.thaw(life) })
	return true
}

// thaw lets everything that waited happen, in order.
func (h *host) thaw(life int) {
	if h.life != life || h.m == nil || h.frozen > h.w.now {
		return
	}
	late := h.late
	h.late = nil
	h.w.trace("node %v continues", h.id)
	h.owed.unsure = max(h.owed.unsure, h.clock()) // nothing could be done about what was late meanwhile
	if h.runs() {
		h.w.mark(markStood)
		h.turn()
	}
	h.w.net.resume(int(h.id))
	for _, f := range late {
		if h.life == life {
			f()
		}
	}
}

func (h *host) heal() {
	h.frozen, h.slow, h.full, h.errors, h.atFlush, h.atClear, h.owed.logHangs = 0, 0, false, 0, nil, nil, false
	if h.m == nil {
		h.boot()
		return
	}
	h.thaw(h.life)
}

func (h *host) addStats() {
	if h.m != nil {
		addStats(&h.w.res.Stats, &h.m.Stats)
	}
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
			for _, a := range h.attempts {
				a.started = true // what starts now cannot be seen: its frame waits for the next link
			}
			h.m.LinkDown(h.clock(), n, reset)
		}
	})
}

func (h *host) arrive(n uint64, msg *pair.Msg) {
	if h.m == nil {
		return
	}
	if h.frozenNow() {
		life := h.life
		h.late = append(h.late, func() {
			if h.life == life {
				h.arrive(n, msg)
			}
		})
		return
	}
	if h.linkUp && h.linkN == n {
		if msg.Type == pair.MsgAppendAck && msg.Aux == h.owed.index {
			h.owed.asked = 0
		}
		h.served = h.m.Serving(h.clock())
		h.receiving(msg)
		h.m.Receive(h.clock(), n, msg)
		h.drain()
	}
}

// drain carries out what the machine asks for. Sends are begun at once, in the machine's order, the
// rest after: what the runtime does.
func (h *host) drain() {
	if h.draining {
		return
	}
	h.draining = true
	look := false
	for h.m != nil && h.m.Pending() {
		list := h.m.Take(h.spare)
		h.spare = nil
		for i := range list {
			if x := &list[i]; x.Kind == pair.ActSend {
				h.sending(x.Msg)
				h.w.net.send(h.id, h.linkN, x.Msg)
			}
		}
		for i := range list {
			switch x := &list[i]; x.Kind {
			case pair.ActSend:
			case pair.ActReply, pair.ActStore, pair.ActApply:
				h.carryOut(x)
			default:
				look = true
				h.carryOut(x)
			}
		}
		clear(list)
		h.spare = list[:0]
	}
	h.draining = false
	if look && h.m != nil {
		h.observe()
	}
}
