package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/gemel-storage/gemel/target/pair"
	"github.com/gemel-storage/gemel/target/scsi"
)

// client is one host with a session to each node. It does one logical operation at a time and repeats it, on either
// path, until it is answered: what a multipath host does. A command whose session broke is given up; its next
// attempt may come while the first still lies in a node's queue, which is what R11 is about.
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
	old       [2]int // attempts given up but still at a node: a new login waits for them

	sess     [2]*session
	remote   [2]bool     // its sessions to that node may be far
	sessions byte        // that it has had there
	cutOff   [2]bool     // its network to that node
	underway [2][]func() // what it has sent there meanwhile
}

// kind of a logical operation.
type kind uint8

const (
	opRead  kind = iota
	opWrite      // WRITE
	opSame       // WRITE SAME
	opZero       // UNMAP
	opSwap       // COMPARE AND WRITE
	opFlush      // SYNCHRONIZE CACHE
)

func (k kind) writes() bool { return k != opRead && k != opFlush }

// logical is what the application asked for.
type logical struct {
	kind     kind
	fua      bool
	lun      int
	block, n int // first block, how many
	verify   uint64
	value    uint64
	start    int64
	tries    []try
}

func (l *logical) String() string {
	name := [...]string{"read", "write", "write same", "unmap", "compare and write", "flush"}[l.kind]
	switch l.kind {
	case opFlush:
		return fmt.Sprintf("%s of LUN %d", name, l.lun+1)
	case opRead:
		return fmt.Sprintf("%s of LUN %d block %d+%d", name, l.lun+1, l.block, l.n)
	case opSwap:
		return fmt.Sprintf("%s of LUN %d block %d from %d to %d", name, l.lun+1, l.block, l.verify, l.value)
	}
	return fmt.Sprintf("%s of LUN %d block %d+%d value %d", name, l.lun+1, l.block, l.n, l.value)
}

// try is one attempt as the history sees it.
type try struct {
	start int64
	none  bool // it can not have taken effect
}

// attempt is one command at one node.
type attempt struct {
	c         *client
	l         *logical
	node      int
	op        *pair.Op // while it is at the node
	scsi      scsi.Op
	data      []byte
	n         int // its number among the tries
	sess      *session
	lost      bool // the host has given it up
	late      bool // and its bytes are still under way
	started   bool // it was seen to take effect here
	forwarded bool
}

func (c *client) describe() string {
	return fmt.Sprintf("%v on path %d, tries %d, at a node: %v", c.op, c.path, len(c.op.tries), c.cur != nil)
}

// next begins a logical operation.
func (c *client) next() {
	w, p := c.w, &c.w.shape
	op := &logical{lun: w.rnd.IntN(p.luns), block: w.rnd.IntN(p.blocks), n: 1, start: w.now}
	switch {
	case w.quiet:
		if c.last == 2*p.blocks*p.luns {
			c.busy, c.ended = false, true
			return
		}
		op.lun, op.block, c.path = c.last/2%p.luns, c.last/2/p.luns, c.last%2
		c.last++
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

// try sends the command over the present path.
func (c *client) try() {
	w := c.w
	h := w.nodes[c.path]
	if h.m == nil || c.old[c.path] > 0 {
		c.retry(true)
		return
	}
	a := &attempt{c: c, l: c.op, node: c.path}
	c.cur = a
	a.n = len(c.op.tries)
	c.op.tries = append(c.op.tries, try{start: w.now, none: true})
	life := h.life
	a.sess = c.session(c.path)
	if c.cutOff[c.path] { // nothing will be heard of it
		w.after(hostPatience+w.between(ms, 300*ms), func() {
			if c.cur == a {
				c.giveUp()
			}
		})
	}
	switch {
	case a.sess.far > 0:
		if w.chance(0.5) && !w.healed {
			w.after(w.even(hostPatience, 2*hostPatience), func() {
				if c.cur == a {
					c.giveUp()
				}
			})
		}
	case w.chance(w.shape.impatient) && !w.healed:
		// The host's own timeout, or a session that breaks for reasons of its own.
		w.after(w.between(200*us, 100*ms), func() {
			if c.cur == a {
				w.mark(markImpatient)
				c.giveUp()
			}
		})
	}
	a.sess.sends(func() {
		// The bytes are readable at the node now; a node that is stopped reads them later.
		arrived := h.clock()
		h.when(life, func() { a.submit(h, arrived) })
	})
}

func (a *attempt) submit(h *host, arrived int64) {
	c, l, w := a.c, a.l, a.c.w
	// A new login would have ended what the old session still sends, if it replaced that.
	ghost := a.lost && a.late && (c.sess[a.node] == nil || a.sess.isid != 0) && !a.sess.closed
	if a.lost && !ghost { // the connection is gone, and what was buffered with it
		return
	}
	// A process that was paused can not tell how long bytes have been waiting: it drops the connection (R11b).
	if h.clock()-arrived > s {
		w.mark(markPaused)
		c.dropped(pair.Node(a.node))
		return
	}
	length := l.n * blockSize
	o := &a.scsi
	*o = scsi.Op{Kind: scsi.OpRead, Off: int64(l.block * blockSize), Len: int64(length), Arrived: arrived, FUA: l.fua,
		Nexus: scsi.NexusID{Initiator: c.name, ISID: [6]byte{5: a.sess.isid}, Port: uint16(a.node + 1)}}
	switch l.kind {
	case opRead:
		a.data = make([]byte, length)
	case opFlush:
		o.Kind, o.Off, o.Len = scsi.OpFlush, 0, 0
	case opWrite:
		o.Kind = scsi.OpWrite
		for range l.n {
			a.data = binary.BigEndian.AppendUint64(a.data, l.value)
		}
	case opSame:
		o.Kind = scsi.OpWriteSame
		a.data = binary.BigEndian.AppendUint64(nil, l.value)
	case opZero:
		o.Kind, o.Unmap = scsi.OpUnmap, true
		o.Ranges = []scsi.Range{{Off: o.Off, Len: o.Len}}
		o.Off, o.Len = 0, 0
	case opSwap:
		o.Kind = scsi.OpCompareWrite
		a.data = binary.BigEndian.AppendUint64(nil, l.value)
		o.Verify = binary.BigEndian.AppendUint64(nil, l.verify)
	}
	o.Data = a.data
	l.tries[a.n].none = false
	a.op = w.newOp()
	a.op.S, a.op.LUN = o, w.luns[l.lun]
	o.Medium = a.op
	o.Life = &a.sess.life
	if l.kind.writes() {
		a.sess.wrote = w.now
	}
	if ghost {
		w.mark(markGhost)
		w.trace("  node %v: host%d %v arrives, from a session that the host has left", h.id, c.id, l)
		life := h.life
		w.after(w.between(20*us, 5*ms), func() { // the end of the connection comes behind it
			h.when(life, func() {
				if a.op != nil {
					h.m.Abort(h.clock(), a.op)
				}
			})
		})
	}
	a.started = !h.linkUp // else its first frame or store work shows the start
	h.attempts[a.op] = a
	h.m.Submit(h.clock(), a.op)
}

// answered is the end of a command at its node. Its buffers are another command's from now on.
func (a *attempt) answered() {
	c, l, w := a.c, a.l, a.c.w
	res := a.scsi.Result
	// BUSY says that the command was not accepted (SAM-5 §5.3.1): it has not taken effect and never will, whatever a front end knows of it.
	if (!a.op.Started || res == scsi.Busy) && l == c.op {
		l.tries[a.n].none = true
	}
	w.trace("  node %v: host%d %v (try %d) -> %s", pair.Node(a.node), c.id, l, a.n+1, resultName(res))
	var got []byte
	if l.kind == opRead {
		got = append(got, a.data...)
	}
	scribble(a.data)
	scribble(a.scsi.Verify)
	w.freeOp(a.op)
	a.op = nil
	if a.lost {
		if !a.late {
			c.old[a.node]--
		}
		return
	}
	w.after(w.between(20*us, 300*us)+a.sess.far, func() {
		if a.lost || c.cur != a {
			return // the connection broke before the status came
		}
		c.cur = nil
		if res == scsi.OK || res == scsi.Miscompare && l.kind == opSwap {
			c.done(a, res, got)
			return
		}
		w.res.Faults["answered "+resultName(res)]++
		if res == scsi.LostData {
			c.publish(w.nodes[a.node], l)
		}
		if res == scsi.NoSpace && w.chance(0.5) || res == scsi.Busy && l.kind.writes() && l.value%4 == 1 {
			c.fails(l)
			return
		}
		c.retry(res == scsi.Unavailable || res == scsi.WriteError || res == scsi.ReadError)
	})
}

// scribble is what the next user of a buffer does to it.
func scribble(b []byte) {
	for i := range b {
		b[i] = 0xee
	}
}

var resultNames = map[scsi.Result]string{scsi.OK: "ok", scsi.Busy: "busy", scsi.Unavailable: "unavailable", scsi.Aborted: "aborted",
	scsi.NoSpace: "no space", scsi.Miscompare: "miscompare", scsi.ReadError: "read error", scsi.WriteError: "write error",
	scsi.LostData: "lost data"}

func resultName(r scsi.Result) string {
	if n := resultNames[r]; n != "" {
		return n
	}
	return fmt.Sprint("result ", r)
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

// fails ends a logical operation with an error that the application is told: it may have taken effect, in part too, unless BUSY was all
// that any attempt was answered. Nobody may see its value then.
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

// giveUp abandons the command under way: its session is gone.
func (c *client) giveUp() {
	a := c.cur
	if a == nil {
		return
	}
	c.cur = nil
	// One that leaves a far session at once has not waited for a silent target, and has what is under way executed or not (docs/decisions/0015).
	waited := c.w.now-a.l.tries[a.n].start >= hostPatience
	a.lost, a.late = true, a.op == nil && (c.cutOff[a.node] || a.sess.far > 0 && waited)
	c.endSession(a.node)
	if h := c.w.nodes[a.node]; a.op != nil && h.m != nil {
		c.old[a.node]++
		life := h.life
		// The target notices the lost nexus later than the host does.
		c.w.after(c.w.between(100*us, 200*ms), func() {
			h.when(life, func() {
				if a.op != nil {
					h.m.Abort(h.clock(), a.op)
				}
			})
		})
	}
	if a.sess.far > 0 {
		c.retry(c.w.chance(0.3))
		return
	}
	c.retry(c.w.chance(0.8))
}

func (c *client) nodeDied(n pair.Node) {
	c.old[n] = 0
	c.endSession(int(n))
	if c.cur != nil && c.cur.node == int(n) {
		c.cur.op = nil
		c.giveUp()
	}
}

// dropped: the node closed this host's connection. What is still on its way over it finds no socket.
func (c *client) dropped(n pair.Node) {
	if s := c.sess[n]; s != nil && s.isid != 0 {
		s.closed = true
	}
	if c.cur != nil && c.cur.node == int(n) {
		c.giveUp()
	}
}

// newOp takes an op from the pool, as the runtime does: one that the machine still held on to would change beneath it.
func (w *world) newOp() *pair.Op {
	if n := len(w.pool); n > 0 {
		o := w.pool[n-1]
		w.pool = w.pool[:n-1]
		return o
	}
	return &pair.Op{}
}

func (w *world) freeOp(o *pair.Op) {
	o.Reset()
	w.pool = append(w.pool, o)
}
