package node

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// medium is a LUN of the pair as the device server uses it.
type medium struct {
	n  *Node
	id pair.LUNID
}

// Submit implements scsi.Medium.
func (d *medium) Submit(s *scsi.Op) bool {
	n := d.n
	o := n.io.ops.get()
	cur := current{o, o.Uses()}
	o.Cmd, o.LUN = s, d.id
	s.Medium = o
	a := actionPool.Get().(*actions)
	a.out = s.Starts
	n.mu.Lock()
	now := n.boottime()
	n.m.Submit(now, o)
	n.takeLocked(a, now)
	n.mu.Unlock()
	return n.perform(a, cur)
}

// Abort implements scsi.Medium.
func (d *medium) Abort(s *scsi.Op) {
	n := d.n
	a := actionPool.Get().(*actions)
	n.mu.Lock()
	now := n.boottime()
	// The op belongs to the machine until ActReply clears it; under the lock it is still this op's
	// or unused.
	if o, _ := s.Medium.(*pair.Op); o != nil && o.Cmd == s {
		n.m.Abort(now, o)
	}
	n.takeLocked(a, now)
	n.mu.Unlock()
	n.perform(a, current{})
}

// Access implements scsi.Medium.
func (d *medium) Access() scsi.Access { return d.n.Access() }

// Access implements scsi.Cluster.
func (n *Node) Access() scsi.Access {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.Access(n.boottime())
}
