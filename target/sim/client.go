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
	w     *world
	id    int
	path  int
	busy  bool
	op    logical
	tries int
	ops   int // logical operations so far
	cur   *attempt
	old   [2]int // attempts given up but still at a node: a new login waits for them
	cool  [2]int64
}

// logical is what the application asked for.
type logical struct {
	write bool
	fua   bool
	flush bool
	lun   int
	block int64
	value uint64
	start int64
	tries []try
}

// try is one attempt as the history sees it.
type try struct {
	start int64
	none  bool // it can not have taken effect
}

// attempt is one command at one node.
type attempt struct {
	c    *client
	node int
	op   *pair.Op
	data []byte
	n    int  // its number among the tries
	lost bool // the host has given it up
	life int  // counts logical operations
}

func (c *client) describe() string {
	return fmt.Sprintf("%+v on path %d, tries %d, at a node: %v", c.op, c.path, c.tries, c.cur != nil)
}

// next begins a logical operation.
func (c *client) next() {
	w := c.w
	if w.healed && w.now > int64(w.cfg.Length)+5*s {
		c.busy = false
		return
	}
	c.busy = true
	w.history.values++
	c.op = logical{lun: w.rnd.IntN(w.cfg.LUNs), block: w.rnd.Int64N(int64(w.cfg.Blocks)), start: w.now, value: w.history.values}
	switch x := w.rnd.Float64(); {
	case x < 0.55:
		c.op.write, c.op.fua = true, w.chance(0.1)
	case x < 0.6:
		c.op.flush = true
	}
	c.tries = 0
	c.ops++
	if w.chance(0.05) { // a host that ignores ALUA now and then
		c.path = 1 - c.path
	}
	c.try()
}

// try sends the command over the present path.
func (c *client) try() {
	w := c.w
	h := w.nodes[c.path]
	c.tries++
	if h.m == nil || c.old[c.path] > 0 || w.now < c.cool[c.path] {
		c.retry(true)
		return
	}
	a := &attempt{c: c, node: c.path, data: make([]byte, 8), life: c.ops}
	c.cur = a
	c.op.tries = append(c.op.tries, try{start: w.now, none: true})
	life := h.life
	w.after(w.between(20*us, 300*us), func() {
		// The bytes are readable at the node now; a node that is stopped reads them later.
		arrived := h.clock()
		h.when(life, func() { a.submit(h, arrived) })
	})
}

func (a *attempt) submit(h *host, arrived int64) {
	c := a.c
	if a.lost { // the connection is gone, and what was buffered with it
		return
	}
	// A process that was paused can not tell how long bytes have been waiting: it drops the connection (R11b).
	if h.clock()-arrived > s {
		c.dropped(pair.Node(a.node))
		return
	}
	s := &scsi.Op{Kind: scsi.OpRead, Off: c.op.block * blockSize, Len: blockSize, Data: a.data, Arrived: arrived, FUA: c.op.fua,
		Nexus: scsi.NexusID{Initiator: fmt.Sprintf("host%d", c.id), Port: uint16(a.node + 1)}}
	switch {
	case c.op.flush:
		s.Kind, s.Data, s.Off, s.Len = scsi.OpFlush, nil, 0, 0
	case c.op.write:
		s.Kind = scsi.OpWrite
		binary.BigEndian.PutUint64(a.data, c.op.value)
	}
	a.n = len(c.op.tries) - 1
	c.op.tries[a.n].none = false
	a.op = &pair.Op{S: s, LUN: c.w.luns[c.op.lun]}
	s.Medium = a.op
	h.attempts[a.op] = a
	h.m.Submit(h.clock(), a.op)
}

// answered is the end of a command at its node.
func (a *attempt) answered(res scsi.Result) {
	c := a.c
	if !a.op.Started && a.life == c.ops {
		c.op.tries[a.n].none = true
	}
	if a.lost {
		c.old[a.node]--
		return
	}
	c.w.after(c.w.between(20*us, 300*us), func() {
		if a.lost || c.cur != a {
			return // the connection broke before the status came
		}
		c.cur = nil
		if res != scsi.OK {
			c.w.res.Faults["answered "+resultName(res)]++
			c.retry(res == scsi.Unavailable)
			return
		}
		c.done(a)
	})
}

func resultName(r scsi.Result) string {
	switch r {
	case scsi.Busy:
		return "busy"
	case scsi.Unavailable:
		return "unavailable"
	case scsi.Aborted:
		return "aborted"
	case scsi.NoSpace:
		return "no space"
	}
	return fmt.Sprint("result ", r)
}

func (c *client) done(a *attempt) {
	w := c.w
	w.res.Operations++
	if !c.op.flush {
		v := c.op.value
		if !c.op.write {
			v = binary.BigEndian.Uint64(a.data)
		}
		w.history.add(c.id, c.op, v, w.now)
	}
	w.after(w.between(100*us, 30*ms), c.next)
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
	a.lost = true
	if h := c.w.nodes[a.node]; a.op != nil && h.m != nil && h.attempts[a.op] == a {
		c.old[a.node]++
		op := a.op
		life := h.life
		// The target notices the lost nexus later than the host does.
		c.w.after(c.w.between(100*us, 200*ms), func() {
			h.when(life, func() {
				if h.attempts[op] != nil {
					h.m.Abort(h.clock(), op)
				}
			})
		})
	}
	c.retry(c.w.chance(0.8))
}

func (c *client) nodeDied(n pair.Node) {
	c.old[n] = 0
	if c.cur != nil && c.cur.node == int(n) {
		c.giveUp()
	}
}

// dropped: the node closed this host's connection.
func (c *client) dropped(n pair.Node) {
	if c.cur != nil && c.cur.node == int(n) {
		c.giveUp()
	}
}
