package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Disks stop, and they have a bandwidth in some histories, less than what hosts write: a write
// waits while the disk has more to write out than it does in backlogMax, as with the store's bound
// (store/writeback.go), and a flush takes as long as there is dirty data. In a part of them nothing
// else goes wrong: then no node may leave or be excluded for slowness (R12), both disks are equally
// busy.

const (
	overloadName = "writes above the disks' speed"
	stopName     = "both disks stop for a while"
	backlogMax   = 250 * ms
)

// busy histories are an eighth of all; in half of these the disks are all that is wrong.
func (w *world) busy() bool     { return w.cfg.Seed%8 == 4 && len(w.cfg.With) == 0 }
func (w *world) onlyBusy() bool { return w.busy() && w.cfg.Seed%16 == 4 }

// overload gives both disks the same bandwidth for a while.
func (w *world) overload() bool {
	blocks := w.even(20, 40) // a second: the widest write takes less than Dm
	for _, h := range w.nodes {
		h.load.perBlock = s / blocks
	}
	w.mark(markOverload)
	return w.until(s, 3*s, func() {
		for _, h := range w.nodes {
			h.load.perBlock = 0
		}
	})
}

// bothStop has both disks answer nothing for a while that may be longer than Dm, and come back a
// moment apart.
func (w *world) bothStop() bool {
	d := w.even(300*ms, 5*s)
	for _, h := range w.nodes {
		h.stopped = max(h.stopped, w.now+d+w.even(0, 30*ms))
	}
	w.mark(markBothStop)
	return true
}

// backlog is what a disk with a bandwidth has to do.
type backlog struct {
	perBlock int64 // the disk's time for a block, 0: none
	dirty    int64 // blocks in the page cache
	at       int64 // dirty was right
	written  int64 // blocks ever, and how many of them are on the disk
	drained  int64
	waiting  []func() bool // begins if there is room; in order
	polled   bool
}

// writeOut lets the disk write out what it could since the last look.
func (h *host) writeOut() {
	b, now := &h.load, h.w.now
	n := b.dirty
	if b.perBlock > 0 {
		from := max(b.at, min(h.stopped, now))
		n = min(b.dirty, (now-from)/b.perBlock)
		if n > 0 || from > b.at {
			b.at = from + n*b.perBlock
		}
	} else {
		b.at = now
	}
	if b.dirty == n {
		b.at = now
	}
	b.dirty, b.drained = b.dirty-n, b.drained+n
}

// room tells whether the page cache takes another write: not more than the disk writes in
// backlogMax.
func (h *host) room() bool {
	h.writeOut()
	return h.load.perBlock == 0 || h.load.dirty*h.load.perBlock < backlogMax
}

// whenRoom begins a write of n bytes when there is room for it; a durable one when it and all
// before it would be written.
func (h *host) whenRoom(n int64, durable bool, begin func()) {
	if h.load.perBlock == 0 && len(h.load.waiting) == 0 {
		begin()
		return
	}
	life, blocks := h.life, max(n/blockSize, 1)
	h.wait(func() bool {
		if h.life != life {
			return true
		}
		if !h.room() {
			return false
		}
		h.load.dirty += blocks
		h.load.written += blocks
		if durable {
			h.whenDrained(begin)
		} else {
			h.when(life, begin)
		}
		return true
	})
}

// whenDrained begins when what was written before is on the disk.
func (h *host) whenDrained(begin func()) {
	h.writeOut()
	life, mark := h.life, h.load.written
	if h.load.drained >= mark {
		begin()
		return
	}
	var look func()
	look = func() {
		if h.life != life {
			return
		}
		if h.writeOut(); h.load.drained < mark {
			h.w.after(5*ms, look)
			return
		}
		h.when(life, begin)
	}
	h.w.after(5*ms, look)
}

// wait polls until what waits first may begin.
func (h *host) wait(begin func() bool) {
	b := &h.load
	if len(b.waiting) == 0 && begin() {
		return
	}
	h.w.mark(markWriteWaited)
	b.waiting = append(b.waiting, begin)
	if b.polled {
		return
	}
	b.polled = true
	var poll func()
	poll = func() {
		for len(b.waiting) > 0 && b.waiting[0]() {
			b.waiting = b.waiting[1:]
		}
		if b.polled = len(b.waiting) > 0; b.polled {
			h.w.after(5*ms, poll)
		}
	}
	h.w.after(5*ms, poll)
}

// window of writes, in bytes: in busy histories it is small enough to matter.
func (w *world) window(cfg *pair.Config) {
	cfg.Window, cfg.WindowMin, cfg.WindowMax = 1000*blockSize, blockSize, 1000*blockSize
	if w.busy() {
		cfg.Window = int64(2+w.cfg.Seed/16%30) * blockSize
	}
}

// lookAtSlowness judges who has left.
func (h *host) lookAtSlowness() {
	if n := h.m.Stats.SlowLeaves + h.m.Stats.SlowExcludes; n > 0 && h.w.onlyBusy() {
		h.w.fail("R12: node %v left, or excluded its peer, for slowness, and both disks are equally busy", h.id)
	}
}
