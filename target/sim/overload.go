package sim

import (
	"github.com/gemel-storage/gemel/target/pair"
)

// Disks have a bandwidth in some histories, less than what hosts write: a write waits while the disk has more to write out
// than it does in backlogMax, as with the store's bound (store/writeback.go), and a flush takes as long as there is dirty data. In a
// part of them nothing else goes wrong: then nobody may leave or be excluded for slowness (R12), both disks are
// equally busy.

const (
	overloadName = "writes above the disks' speed"
	backlogMax   = 250 * ms
)

// busy histories are an eighth of all; in half of these the disks are all that is wrong.
func (w *world) busy() bool     { return w.cfg.Seed%8 == 4 && len(w.cfg.With) == 0 }
func (w *world) onlyBusy() bool { return w.busy() && w.cfg.Seed%16 == 4 }

// overload gives both disks the same bandwidth for a while.
func (w *world) overload() bool {
	blocks := w.even(8, 30) // a second
	for _, h := range w.nodes {
		h.perBlock = s / blocks
	}
	w.mark(markOverload)
	return w.until(s, 3*s, func() {
		for _, h := range w.nodes {
			h.perBlock, h.writtenAt = 0, 0
		}
	})
}

// load is how long a write of n bytes waits for the disk: with the page cache, until there is room in it; durable, until it is
// written.
func (h *host) load(n int64, durable bool) int64 {
	if h.perBlock == 0 {
		return 0
	}
	waits := max(h.backlog()-backlogMax, 0)
	h.writtenAt = max(h.writtenAt, h.w.now) + n/blockSize*h.perBlock
	if durable {
		return h.backlog()
	}
	if waits > 0 {
		h.w.mark(markWriteWaited)
	}
	return waits
}

// backlog is how long the disk will write out what is dirty.
func (h *host) backlog() int64 { return max(h.writtenAt-h.w.now, 0) }

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
