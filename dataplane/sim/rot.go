package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// In some histories blocks also rot where there is no good copy: at a lone member, at either end of
// a resync, at both nodes. What is lost is answered with its place, never with a value, and is
// copied as bad, until a host writes it again. Two things are not promised: what rots and is in
// doubt when a process starts, for whatever is there is taken, and what a loss of power takes back.

// rotName is the kind of fault that makes every history such a one.
const rotName = "rot"

// lonely draws whether this history is one, from what nothing else draws from.
func (w *world) lonely() bool {
	if w.busy() || w.remote() || w.onlyBusy() {
		return false
	}
	return slices.Contains(w.cfg.With, rotName) || rand.New(rand.NewPCG(w.cfg.Seed, 0x6c6f6e65)).Float64() < 0.1
}

// Where a block rots.
const (
	rotAnywhere = iota
	rotAlone
	rotSource
	rotJoiner
	rotBoth
	rotKinds
)

// planRot spreads it over the history. What cannot happen when it is due waits for its moment.
func (w *world) planRot() {
	if !w.shape.lone {
		return
	}
	w.rotting(func() {
		for range 3 + w.rnd.IntN(10) {
			kind := w.rnd.IntN(rotKinds)
			var try func()
			try = func() {
				done := w.healed
				if !done {
					w.rotting(func() { done = w.decay(kind) })
				}
				if !done {
					w.after(5*ms, try)
				}
			}
			w.after(w.even(300*ms, w.shape.length), try)
		}
	})
}

// decay changes a block of a LUN, whatever the other copy is.
func (w *world) decay(kind int) bool {
	if !w.shape.lone {
		return true
	}
	h := w.any()
	switch kind {
	case rotAlone:
		if h.m == nil || h.phase != pair.Alone {
			return false
		}
	case rotSource, rotJoiner:
		if !h.resyncing || h.phase != pair.Alone {
			return false
		}
		if kind == rotJoiner {
			h = w.nodes[h.id.Peer()]
		}
	}
	peer := w.nodes[h.id.Peer()]
	if h.m == nil || h.disk.suspect() || kind == rotBoth && (peer.m == nil || peer.disk.suspect()) {
		return false
	}
	object := w.rnd.IntN(w.shape.luns)
	g := w.rnd.IntN(len(h.disk.sums[object]))
	if !h.disk.good(object, g) || kind == rotBoth && !peer.disk.good(object, g) || !w.spoil(h, object, g) {
		return false
	}
	if kind == rotBoth {
		w.spoil(peer, object, g)
	}
	return true
}

// rots notes that a group has been damaged.
func (w *world) rots(object, g int) {
	if w.rotten == nil {
		w.rotten = map[[2]int]int64{}
	}
	w.rotten[[2]int{object, g}] = w.now
}

// mayBeLost reports whether a read error is a legal answer: a block of the range has been damaged.
func (w *world) mayBeLost(l *logical) bool {
	for b := l.block; w.shape.lone && b < l.block+l.n; b++ {
		if _, has := w.rotten[[2]int{l.lun, b / w.shape.group}]; has {
			return true
		}
	}
	return false
}

// matches reports whether a group matches its checksum, and leaves one in doubt as it is.
func (d *disk) matches(object, g int) bool {
	c := &d.sums[object][g]
	return c.doubt || c.mem == d.content(object, g)
}

// gone reports whether what a node holds of a page is no value, and known to be none.
func (w *world) gone(h *host, l, b int) bool {
	return h.disk.misfit[l] || w.shape.lone && !h.disk.matches(l, b/w.shape.group)
}

// vouches judges each serving node: what matches its checksum is what was written last. So garbage
// has none. One that is about to tell hosts of a loss (R8) holds what it holds.
func (w *world) vouches() {
	if !w.shape.lone {
		return
	}
	for _, h := range w.nodes {
		if h.m == nil || h.frozenNow() || h.broken || h.failed || h.disk.suspect() || h.disk.life.Lost || !h.m.Serving(h.clock()) {
			continue
		}
		w.truth.each(func(l, b int, f *fact) {
			p := &h.disk.luns[l][b]
			if c := &h.disk.sums[l][b/w.shape.group]; !c.doubt && h.disk.matches(l, b/w.shape.group) && p.cache^p.flip != f.value {
				w.fail("R15: at node %v LUN %d block %d holds %d with a valid checksum, acknowledged was %d", h.id, l+1, b, p.cache^p.flip, f.value)
			}
		})
	}
}

// looked is when blocks of a region that is copied were looked at, and when they had been when a
// joiner was asked for one of them. What is copied is what a look after the answer finds; a process
// that is stopped, or a slow disk, may take its time for that.
type looked struct{ last, asked int64 }

// askedWithin is how long it may take between two looks where no joiner was asked.
const askedWithin = 100 * ms

// looksAt notes a look at a source.
func (w *world) looksAt(l pair.LUNID, off int64) {
	if w.shape.lone {
		x := w.lookedAt[w.regionOf(int(l[0])-1, int(off/blockSize))]
		x.last = w.now
		w.noteLook(l, off, x)
	}
}

// asked notes that a joiner is asked for a block.
func (w *world) asked(l pair.LUNID, off int64) {
	if w.shape.lone {
		x := w.lookedAt[w.regionOf(int(l[0])-1, int(off/blockSize))]
		x.asked = x.last
		w.noteLook(l, off, x)
	}
}

func (w *world) noteLook(l pair.LUNID, off int64, x looked) {
	if w.lookedAt == nil {
		w.lookedAt = map[[2]int]looked{}
	}
	w.lookedAt[w.regionOf(int(l[0])-1, int(off/blockSize))] = x
}

// regionOf is the region of a block of an object. No copy is of blocks of two.
func (w *world) regionOf(object, block int) [2]int {
	return [2]int{object, block / int(w.shape.region)}
}

// givenUp judges what is marked as lost at a joiner: the joiner must not have what the checksums of
// the source say that the blocks were. What rots after the look for which the joiner was asked is
// excused.
func (h *host) givenUp(l pair.LUNID, bad []scsi.Range) {
	source := h.w.nodes[h.id.Peer()]
	if source.m == nil || !source.disk.promised(int(l[0])-1) || source.disk.suspect() || h.disk.suspect() || h.sick {
		return
	}
	for _, r := range bad {
		from, to := h.disk.groups(r.Off, r.Len)
		for g := from; g < to; g++ {
			rotten := h.w.rotten[[2]int{int(l[0]) - 1, g}]
			asked := h.w.lookedAt[h.w.regionOf(int(l[0])-1, g*h.w.shape.group)].asked
			if h.w.now-rotten < askedWithin || asked > 0 && asked <= rotten {
				continue
			}
			if c := &source.disk.sums[l[0]-1][g]; !c.doubt && c.mem.kind == sumOf && c.mem == h.disk.content(int(l[0])-1, g) {
				h.w.fail("R15: node %v had the good copy of LUN %d group %d, which is marked as lost", h.id, l[0], g)
			}
		}
	}
}

// lost names a group of a LUN that does not match its checksum.
func (w *world) lost() string {
	if !w.shape.lone {
		return ""
	}
	for _, h := range w.nodes {
		for l := range w.shape.luns {
			for g := range h.disk.sums[l] {
				if !h.disk.matches(l, g) {
					return fmt.Sprintf("node %v has no good copy of LUN %d block %d", h.id, l+1, g*w.shape.group)
				}
			}
		}
	}
	return ""
}

// comesBack is the start of a process: what is in doubt is as it was written, and what is known to
// be lost stays so.
func (d *disk) comesBack() {
	for object, list := range d.sums {
		for g := range list {
			c := &list[g]
			if !c.doubt {
				continue
			}
			if c.mem.kind == sumBad {
				c.doubt = false
				continue
			}
			for i := range d.group(object, g) {
				d.group(object, g)[i].flip = 0
			}
		}
	}
}

// finds is a host that gets the error that a block is lost. Sooner or later a host writes the whole
// block again.
func (c *client) finds(a *attempt) {
	w, l := c.w, a.l
	w.mark(markLostAnswered)
	w.res.Operations++
	if l.kind.writes() { // nothing is written before the comparison
		l.tries[a.n].none = true
		w.history.tries(c.id, l, len(l.tries), w.now)
		w.truth.end(l, false, w.now)
		if !l.never() {
			w.truth.doubt(l)
		}
	}
	if l.last {
		c.last--
	}
	w.rotting(func() {
		if w.healed || w.chance(0.3) {
			size := w.shape.group
			block := int(a.scsi.BadAt) / blockSize / size * size
			c.rewrite = &logical{kind: opWrite, lun: l.lun, block: block, n: min(size, w.shape.blocks-block), value: w.history.fresh(), rewrites: true}
		}
	})
	c.op, c.busy = nil, false
	w.after(w.between(100*us, w.shape.think), c.next)
}
