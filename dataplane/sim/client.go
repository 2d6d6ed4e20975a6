package sim

import (
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// client is one host with a session to each node. It does one logical operation at a time and
// repeats it, on either path, until it is answered: what a multipath host does. A command whose
// session broke is given up; its next attempt may come while the first still lies in a node's
// queue, which is what R11 is about.
type client struct {
	w    *world
	id   int
	name string
	// published is when this host published a LUN again last
	published map[int]int64
	path      int
	busy      bool
	op        *logical
	ops       int // logical operations so far
	last      int // blocks still to be read at the end, over both paths
	ended     bool
	cur       *attempt
	rewrite   *logical // what it found lost, to be written again
	old       [2]int   // attempts given up but still at a node: a new login waits for them

	sess     [2]*session
	spare    [2]*session // of two to that node, the one that it does not use now
	left     [2]*session // that it had there before, until the next one
	remote   [2]bool     // its sessions to that node may be far
	sessions byte        // that it has had there
	cutOff   [2]bool     // its network to that node
	underway [2][]func() // what it has sent there meanwhile
}

func (c *client) describe() string {
	return fmt.Sprintf("%v on path %d, tries %d, at a node: %v", c.op, c.path, len(c.op.tries), c.cur != nil)
}

// next begins a logical operation.
func (c *client) next() {
	w, p := c.w, &c.w.shape
	op := &logical{lun: w.rnd.IntN(p.luns), block: w.rnd.IntN(p.blocks), n: 1, start: w.now}
	switch {
	case c.rewrite != nil:
		op, c.rewrite = c.rewrite, nil
		op.start = w.now
	case w.quiet:
		if c.last == 2*p.blocks*p.luns {
			c.busy, c.ended = false, true
			return
		}
		op.lun, op.block, c.path = c.last/2%p.luns, c.last/2/p.luns, c.last%2
		c.last++
		op.last = true
	case w.chance(p.flush):
		op.kind = opFlush
	case w.chance(p.write):
		c.drawWrite(op)
	case w.chance(p.wide):
		op.n = 1 + w.rnd.IntN(p.blocks-op.block)
	}
	c.busy, c.op = true, op
	if op.kind.writes() {
		w.truth.begin(op)
	}
	c.ops++
	if w.chance(p.astray) { // a host that ignores ALUA now and then
		c.path = 1 - c.path
	}
	c.try()
}

func (c *client) drawWrite(op *logical) {
	w, p := c.w, &c.w.shape
	op.kind, op.fua = opWrite, w.chance(p.fua)
	op.value = w.history.fresh()
	switch {
	case w.chance(p.swap):
		op.kind = opSwap
		op.verify = w.history.seen[op.lun][op.block]
		if w.chance(0.1) {
			op.verify = w.rnd.Uint64N(op.value)
		}
		return
	case w.chance(p.zero):
		op.kind, op.value = opZero, 0
	case w.chance(0.1):
		op.kind = opSame
	}
	if w.chance(p.wide) {
		op.n = 1 + w.rnd.IntN(p.blocks-op.block)
	}
}

func (c *client) done(a *attempt, res scsi.Result, got []byte) {
	w, l := c.w, a.l
	w.res.Operations++
	switch {
	case l.kind == opSwap && res == scsi.OK:
		w.mark(markSwap)
	case l.kind == opSwap:
		w.mark(markMiscompare)
	}
	if l.rewrites {
		w.mark(markOverwritten)
	}
	w.history.add(c.id, l, res, got, w.now)
	if l.kind.writes() {
		w.truth.end(l, res == scsi.OK, w.now)
	}
	c.op, c.busy = nil, false
	think := w.shape.think
	switch {
	case w.quiet:
		think = ms
	case w.healed && w.res.Operations > minOperations:
		think = 100 * ms // the rest only shows that the pair serves
	}
	w.after(w.between(100*us, think), c.next)
}

// fails ends a logical operation with an error that the application gets: it may have taken effect,
// in part too, unless BUSY was all that any attempt was answered. No host may see its value then.
func (c *client) fails(l *logical) {
	w := c.w
	w.res.Operations++
	w.history.tries(c.id, l, len(l.tries), w.now)
	w.truth.end(l, false, w.now)
	if l.kind == opSwap && !l.never() {
		w.truth.doubt(l)
	}
	c.op, c.busy = nil, false
	w.after(w.between(100*us, w.shape.think), c.next)
}

// retry comes back after a moment, on the other path if this one is no good.
func (c *client) retry(other bool) {
	if other {
		c.path = 1 - c.path
	}
	c.w.after(c.w.between(2*ms, 40*ms), c.try)
}
