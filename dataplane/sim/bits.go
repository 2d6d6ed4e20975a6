package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The write-intent bits, the node's own state, and what hosts get MEDIUM ERROR after a loss.

func (h *host) saveState(id uint64, life pair.State) {
	if id >= h.disk.lifeID {
		h.disk.life, h.disk.lifeID = life, id
	}
}

// intend makes bits durable. A write that a death cuts short may have set some of them.
func (h *host) intend(l pair.LUNID, regions []uint32) {
	m, d := h.m, h.disk
	h.io(ioWrite, 100*us, 8*ms, func(torn func() bool) {
		for _, r := range regions {
			if torn == nil || torn() {
				d.bits[l[0]-1].Add(int(r))
			}
		}
	}, func(res scsi.Result) { m.Intended(h.clock(), l, res == scsi.OK) })
}

// check is what a host may do when its command starts: nothing, until it has published a LUN again
// that lost writes.
func (h *host) check(o *scsi.Op, l pair.LUNID) scsi.Result {
	if h.disk.meta.Lost[l[0]-1]&h.w.bitOf(o.Nexus.Initiator) != 0 {
		return scsi.LostData
	}
	if h.disk.misfit[l[0]-1] {
		return fenced(o)
	}
	return scsi.OK
}

func (w *world) bitOf(name string) uint64 {
	for _, c := range w.clients {
		if c.name == name {
			return 1 << c.id
		}
	}
	return 0
}

// markLost reports the loss to the hosts. From then on the history may show an older value of what
// was not flushed.
func (h *host) markLost(units []pair.LUNID) {
	w, life := h.w, h.life
	e, forced := entry{}, h.disk.life.LostAll
	for _, l := range units {
		e.Lost = append(e.Lost, int(l[0]-1))
	}
	w.mark(markLost)
	if forced && len(units) != len(w.luns) {
		w.fail("R8: node %v took over by force, and %d of %d LUNs answer MEDIUM ERROR", h.id, len(units), len(w.luns))
	}
	var try func()
	try = func() {
		if len(e.Lost) == 0 {
			h.m.LostMarked(h.clock())
			return
		}
		h.propose(e, func(res scsi.Result) {
			if res == scsi.OK {
				w.trace("node %v: LUNs %v may have lost writes", h.id, e.Lost)
				for _, l := range e.Lost {
					w.history.lost(l, w.now, forced)
					w.truth.lost(l)
				}
				h.m.LostMarked(h.clock())
				return
			}
			w.after(ms, func() { h.when(life, try) })
		})
	}
	w.after(50*us, func() { h.when(life, try) })
}

// publishEvery is how often a host publishes a LUN again at most.
const publishEvery = 100 * ms

// publish is a host that got the error of a loss and publishes the LUN again, over the node that
// returned it.
func (c *client) publish(h *host, l *logical) {
	w, life := c.w, h.life
	if at, ok := c.published[l.lun]; ok && w.now-at < publishEvery {
		return // a log that waits for a slow disk would be flooded
	}
	if c.published == nil {
		c.published = map[int]int64{}
	}
	c.published[l.lun] = w.now
	w.mark(markPublished)
	w.after(w.between(ms, 50*ms), func() {
		h.when(life, func() {
			h.moving++
			h.propose(entry{LUN: l.lun, Publish: 1 << c.id}, func(scsi.Result) { h.moving-- })
		})
	})
}
