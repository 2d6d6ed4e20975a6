package node

import (
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// together begins a batch: tell tells the machine of its changes in one call, and sends together
// what follows.
func (n *Node) together() *actions {
	a := actionPool.Get().(*actions)
	a.out = &a.own
	return a
}

// tell tells the machine of the changes that were done, and carries out and sends what follows.
func (n *Node) tell(a *actions) {
	n.carryOut(a, current{})
	a.out.Send()
	for range a.mirrored {
		n.peer.applies.Done()
	}
	a.recycle()
}

// done notes the outcome of a change that a goroutine has done that the next link waits for (R4).
func (c *change) done(a *actions, res scsi.Result) {
	if c.op != nil {
		c.n.storeDone(a, c.op, res)
		return
	}
	a.mirrored++
	c.n.applied(a, c.link, c.msg, res)
}

// writeDurable begins a durable write.
func (n *Node) writeDurable(f *store.File, p []byte, off int64, c *change) {
	f.WriteDurable(&store.Durable{P: p, Off: off, Tag: c, By: n})
}

// Ended implements store.Ender.
func (n *Node) Ended(list []*store.Durable) {
	a := n.together()
	for _, d := range list {
		d.Tag.(*change).done(a, classify(d.Err, true))
	}
	n.tell(a)
}
