package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

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
	strays    bool // its bytes are under way for long
	started   bool // it was seen to take effect here
	forwarded bool
}

// try sends the command over the present path.
func (c *client) try() {
	w := c.w
	h := w.nodes[c.path]
	if h.m == nil || c.old[c.path] > 0 && !w.beside() {
		c.retry(true)
		return
	}
	a := &attempt{c: c, l: c.op, node: c.path}
	c.cur = a
	a.n = len(c.op.tries)
	c.op.tries = append(c.op.tries, try{start: w.now, none: true})
	life := h.life
	c.swap(c.path)
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
	stray := int64(0)
	if w.strays() {
		stray, a.strays = w.strayFor(), true
		w.after(w.between(300*us, 20*ms), func() {
			if c.cur == a {
				c.giveUp()
			}
		})
	}
	a.sess.sendsIn(stray, func() {
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
	// A process that was paused cannot tell how long bytes have been waiting: it drops the
	// connection (R11b).
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
	a.op.Cmd, a.op.LUN = o, w.luns[l.lun]
	o.Medium = a.op
	o.Liveness = &a.sess.life
	if l.kind.writes() {
		a.sess.wrote = w.now
	}
	if ghost {
		w.mark(markGhost)
		w.trace("  node %v: host%d %v arrives, from a session that the host has left", h.id, c.id, l)
		life := h.life
		end := func() {
			h.when(life, func() {
				if a.op != nil {
					h.m.Abort(h.clock(), a.op)
				}
			})
		}
		a.sess.ghosts = append(a.sess.ghosts, end)
		w.after(w.between(20*us, 5*ms), end) // the end of the connection comes behind it
	}
	a.started = !h.linkUp // else its first frame or store work shows the start
	h.attempts[a.op] = a
	h.m.Submit(h.clock(), a.op)
}

// answered is the end of a command at its node. Its buffers are another command's from now on.
func (a *attempt) answered() {
	c, l, w := a.c, a.l, a.c.w
	res := a.scsi.Result
	// BUSY says that the command was not accepted (SAM-5 §5.3.1): it has not taken effect and never
	// will, whatever a front end knows of it.
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
		if w.shape.lone && res == scsi.ReadError && a.scsi.Located {
			c.finds(a)
			return
		}
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

// giveUp abandons the command under way: its session is gone.
func (c *client) giveUp() {
	a := c.cur
	if a == nil {
		return
	}
	c.cur = nil
	// One that leaves a far session at once has not waited for a silent target, and has what is
	// under way executed or not (docs/decisions/0015).
	waited := c.w.now-a.l.tries[a.n].start >= hostPatience
	a.lost, a.late = true, a.op == nil && (c.cutOff[a.node] || a.sess.far > 0 && waited || a.strays)
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
	if a.sess.far > 0 || c.w.beside() {
		c.retry(c.w.chance(0.3))
		return
	}
	c.retry(c.w.chance(0.8))
}

func (c *client) nodeDied(n pair.Node) {
	c.old[n] = 0
	c.endSession(int(n))
	c.endSpare(int(n))
	if c.cur != nil && c.cur.node == int(n) {
		c.cur.op = nil
		c.giveUp()
	}
}

// dropped: the node closed this host's connection. What is still on its way over it finds no
// socket.
func (c *client) dropped(n pair.Node) {
	for _, s := range c.sessionsAt(int(n)) {
		s.closed = s.closed || s.isid != 0
	}
	c.endSpare(int(n))
	if c.cur != nil && c.cur.node == int(n) {
		c.giveUp()
	}
}

// newOp takes an op from the pool, as the runtime does: one that the machine still held on to would
// change beneath it.
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
