package sim

import (
	"fmt"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// truth knows what a block must hold at moments when that is beyond doubt: no host has a write of
// it open, and the last write overlapped no other. What is claimed at such a moment needs no
// search, so it is claimed at every step.
type truth struct {
	blocks [][]fact
	off    bool // nothing is beyond doubt any more
}

type fact struct {
	open    int  // logical writes of hosts under way
	crowded bool // more than one since it was last quiet
	known   bool // value is certain while nothing is open
	value   uint64
	since   int64 // when value was acknowledged
}

func (t *truth) init(luns, blocks int) {
	t.blocks = make([][]fact, luns)
	for i := range t.blocks {
		t.blocks[i] = make([]fact, blocks)
		for b := range t.blocks[i] {
			t.blocks[i][b].known = true
		}
	}
}

func (t *truth) begin(op *logical) {
	for b := op.block; b < op.block+op.n; b++ {
		f := &t.blocks[op.lun][b]
		f.crowded = f.open > 0
		f.open++
	}
}

// end takes the outcome of a logical write. wrote tells that its value is there now; else it is
// there or is not.
func (t *truth) end(op *logical, wrote bool, now int64) {
	for b := op.block; b < op.block+op.n; b++ {
		f := &t.blocks[op.lun][b]
		f.open--
		switch {
		case f.open > 0:
		case f.crowded:
			f.known = false
		case wrote:
			f.known, f.value, f.since = true, op.value, now
		case op.never():
			// what was there still is
		case len(op.tries) > 1 || op.kind != opSwap:
			f.known = false // it may be there
		}
	}
}

// never tells that no attempt can have taken effect.
func (l *logical) never() bool {
	return !slices.ContainsFunc(l.tries, func(t try) bool { return !t.none })
}

// doubt takes back what was known of an operation's blocks.
func (t *truth) doubt(op *logical) {
	for b := op.block; b < op.block+op.n; b++ {
		t.blocks[op.lun][b].known = false
	}
}

// lost forgets a LUN: writes that were not flushed may be gone.
func (t *truth) lost(lun int) {
	for b := range t.blocks[lun] {
		t.blocks[lun][b].known = false
	}
}

// each walks the blocks whose content is beyond doubt.
func (t *truth) each(do func(lun, block int, f *fact)) {
	for l := range t.blocks {
		for b := range t.blocks[l] {
			if f := &t.blocks[l][b]; f.open == 0 && f.known && !t.off {
				do(l, b, f)
			}
		}
	}
}

// alone tells whether op is the only open write of its blocks, and has been.
func (t *truth) alone(op *logical) bool {
	for b := op.block; b < op.block+op.n; b++ {
		if f := &t.blocks[op.lun][b]; f.open != 1 || f.crowded || t.off {
			return false
		}
	}
	return true
}

// acknowledged judges a status at the moment it leaves (R1, R8): what it promises must be on the
// disks already.
func (w *world) acknowledged(h *host, a *attempt) {
	op := a.l
	if a.lost || op != a.c.op {
		return // no receiver
	}
	phase := h.m.View(h.clock()).Phase
	if phase != h.phase && h.served {
		return // it changes at this very moment: under which of the two it was sent is unknown
	}
	peer := w.nodes[h.id.Peer()]
	both := phase == pair.Paired
	if both && peer.harmed >= op.start {
		both = false // it had it; that it has lost it since is what the lease allows for
	}
	switch {
	case op.kind.writes() && w.truth.alone(op):
		for b := op.block; b < op.block+op.n; b++ {
			own, other := &h.disk.luns[op.lun][b], &peer.disk.luns[op.lun][b]
			switch {
			case own.cache != op.value:
				w.fail("R1: node %v acknowledges %s, its own disk holds %d", h.id, op, own.cache)
			case both && other.cache != op.value:
				w.fail("R1a: node %v acknowledges %s, the peer's disk holds %d", h.id, op, other.cache)
			case both && op.fua && (own.stable != op.value || other.stable != op.value):
				w.fail("R8: node %v acknowledges FUA %s, durable is %d here, %d there", h.id, op, own.stable, other.stable)
			case phase == pair.Alone && own.stable != op.value:
				w.fail("R1b: node %v is alone and acknowledges %s, durable is %d", h.id, op, own.stable)
			}
		}
	case op.kind == opFlush:
		w.truth.each(func(l, b int, f *fact) {
			if l != op.lun || f.since >= op.tries[a.n].start {
				return
			}
			if v := h.disk.luns[l][b].stable; v != f.value && !w.gone(h, l, b) {
				w.fail("R8: node %v has flushed LUN %d block %d, durable is %d, not %d", h.id, l+1, b, v, f.value)
			}
			if v := peer.disk.luns[l][b].stable; both && v != f.value && !w.gone(peer, l, b) {
				w.fail("R8: node %v has flushed LUN %d block %d, durable at the peer is %d, not %d", h.id, l+1, b, v, f.value)
			}
		})
	}
}

// alike: a write that found no space has left both copies the same (R5, R13).
func (w *world) alike(h *host, a *attempt) {
	peer, op := w.nodes[h.id.Peer()], a.l
	if a.lost || op != a.c.op || !w.truth.alone(op) || len(op.tries) > 1 || peer.harmed >= op.start ||
		h.phase != pair.Paired || h.m.View(h.clock()).Phase != pair.Paired {
		return
	}
	for b := op.block; b < op.block+op.n; b++ {
		if !h.disk.vouched(op.lun, b) || !peer.disk.vouched(op.lun, b) {
			continue // the next read takes it from the other one
		}
		if x, y := h.disk.luns[op.lun][b].cache, peer.disk.luns[op.lun][b].cache; x != y {
			w.fail("R13: node %v found no space for %s: block %d holds %d here, %d there", h.id, op, b, x, y)
		}
	}
}

// lacks tells what a node lacks of what was acknowledged.
func (w *world) lacks(h *host, of func(*page) uint64) (what string) {
	w.truth.each(func(l, b int, f *fact) {
		if v := of(&h.disk.luns[l][b]); v != f.value && what == "" && !w.gone(h, l, b) {
			what = fmt.Sprintf("LUN %d block %d holds %d there, acknowledged was %d", l+1, b, v, f.value)
		}
	})
	return what
}

// copies compares the disks at the end.
func (w *world) copies() error {
	a, b := w.nodes[0].disk, w.nodes[1].disk
	if what := w.lost(); w.shape.lone && what != "" && !w.excusedMark() {
		return fmt.Errorf("what was lost has been written again, and %s", what)
	}
	for _, h := range w.nodes {
		if what := h.disk.flipped(); what != "" && !w.shape.lone {
			return fmt.Errorf("a scrub has not found what changed behind node %v's back: %s", h.id, what)
		}
	}
	skip := func(object, _ int) bool {
		return a.prepared(object) && b.prepared(object) || w.shape.lone && object >= w.shape.luns // of a LUN with lost blocks
	}
	if w.excusedMark() {
		return nil
	}
	if d := a.diff(b, skip); d != "" {
		return fmt.Errorf("the copies differ: %s", d)
	}
	if a.meta.Index != b.meta.Index {
		return fmt.Errorf("the logs end at %d on a, %d on b", a.meta.Index, b.meta.Index)
	}
	for i := range a.meta.Units {
		if a.meta.Units[i] != b.meta.Units[i] {
			return fmt.Errorf("R9: LUN %d is %+v on a, %+v on b", i+1, a.meta.Units[i], b.meta.Units[i])
		}
	}
	for i := range a.meta.Snaps {
		if a.meta.Snaps[i] != b.meta.Snaps[i] {
			return fmt.Errorf("R9: slot %d of a snapshot is %+v on a, %+v on b", i+1, a.meta.Snaps[i], b.meta.Snaps[i])
		}
	}
	if what := w.unfinished(); what != "" {
		return fmt.Errorf("R14: %s", what)
	}
	return nil
}

func (w *world) excusedMark() bool {
	return w.res.Marks[markExcusedDisk] > 0
}
