package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// network is the link between the nodes: two connections, that of heartbeats and that of everything
// else.
type network struct {
	w       *world
	n       uint64
	up      bool
	cut     [2]bool // direction from that node: nothing passes
	stuck   [2]bool // the same for data only, heartbeats pass
	slow    [2]int64
	lanes   [2][2]lane
	dialing bool
}

// lane is one direction of one connection. A frame first waits in the sender's queue, as the very
// message that the machine gave: a real link reads header and buffers when the socket has room.
// Once read it is on the wire, which delivers in order; while the direction is cut, frames on the
// wire come late, as TCP's do, unless the connection is given up.
type lane struct {
	queue  []*pair.Msg // not read yet
	wire   []*pair.Msg // copies under way
	next   int64       // no arrival before
	due    int         // arrivals that came while the direction was cut
	moving bool        // an event will read the head of the queue
}

// connectLater makes a link once both nodes live and no direction is cut.
func (n *network) connectLater() {
	if n.dialing {
		return
	}
	n.dialing = true
	n.w.after(n.w.between(2*ms, 60*ms), func() {
		n.dialing = false
		a, b := n.w.nodes[0], n.w.nodes[1]
		if n.up {
			return
		}
		if a.m == nil || b.m == nil || n.cut[0] || n.cut[1] || a.frozenNow() || b.frozenNow() || a.linkUp || b.linkUp ||
			a.applies > 0 || b.applies > 0 {
			// The runtime lets the work of the old link end first (R4).
			if a.applies > 0 || b.applies > 0 {
				n.w.mark(markLinkWaited)
			}
			n.connectLater()
			return
		}
		n.n++
		n.up = true
		n.lanes = [2][2]lane{}
		for _, h := range n.w.nodes {
			h.linkUpAt(n.n)
		}
	})
}

func laneOf(t pair.MsgType) int {
	if t == pair.MsgHeartbeat || t == pair.MsgHeartbeatAck {
		return 1
	}
	return 0
}

func (n *network) blocked(from pair.Node, k int) bool { return n.cut[from] || k == 0 && n.stuck[from] }

// send queues a message of a link.
func (n *network) send(from pair.Node, link uint64, msg *pair.Msg) {
	if !n.up || link != n.n {
		return
	}
	k := laneOf(msg.Type)
	l := &n.lanes[from][k]
	l.queue = append(l.queue, msg)
	if l.moving {
		return
	}
	if n.w.rnd.Float64() < n.w.shape.late {
		n.wait(from, k, 300*us) // another goroutine is writing, or the socket is full
		return
	}
	n.read(from, k)
}

// read takes frames off the queue: from here on a change of their buffers is not seen.
func (n *network) read(from pair.Node, k int) {
	l := &n.lanes[from][k]
	if l.moving || n.blocked(from, k) || n.w.nodes[from].frozenNow() || !n.up {
		return
	}
	n0 := 0
	for n0 < len(l.queue) {
		msg := l.queue[n0]
		n0++
		c := *msg
		c.Meta, c.Data, c.Op = slices.Clone(msg.Meta), slices.Clone(msg.Data), nil
		l.wire = append(l.wire, &c)
		n.travel(from, k)
		if n0 < len(l.queue) && n.w.chance(n.w.shape.late/2) {
			n.wait(from, k, 5*ms) // the socket took no more
			break
		}
	}
	l.queue = slices.Delete(l.queue, 0, n0)
}

// wait has the head of the queue read later.
func (n *network) wait(from pair.Node, k int, hi int64) {
	l, link := &n.lanes[from][k], n.n
	l.moving = true
	n.w.after(n.w.between(us, hi)+n.slow[from], func() {
		if link == n.n {
			l.moving = false
			n.read(from, k)
		}
	})
}

// travel plans one arrival: whatever is first on the wire then.
func (n *network) travel(from pair.Node, k int) {
	w, link := n.w, n.n
	l := &n.lanes[from][k]
	l.next = max(w.now+w.between(20*us, 400*us)+n.slow[from], l.next)
	w.after(l.next-w.now, func() {
		if link != n.n || len(l.wire) == 0 {
			return
		}
		if n.blocked(from, k) {
			l.due++
			return
		}
		msg := l.wire[0]
		l.wire[0] = nil
		l.wire = l.wire[1:]
		w.nodes[from.Peer()].arrive(link, msg)
	})
}

// resume continues what waited, after a cut or when a node thaws.
func (n *network) resume(from int) {
	for k := range n.lanes[from] {
		l := &n.lanes[from][k]
		if n.blocked(pair.Node(from), k) {
			continue
		}
		for ; l.due > 0; l.due-- {
			n.travel(pair.Node(from), k)
		}
		n.read(pair.Node(from), k)
	}
}

// drop ends the present link: each node learns of it separately, a dead one never. What was not
// sent is lost, and some of what was.
func (n *network) drop(why string) {
	if !n.up {
		return
	}
	n.w.trace("link %d drops: %s", n.n, why)
	n.up = false
	for d := range n.lanes {
		for k := range n.lanes[d] {
			l := &n.lanes[d][k]
			l.queue, l.due = nil, 0
			if len(l.wire) > 0 {
				l.wire = l.wire[:n.w.rnd.IntN(len(l.wire)+1)]
			}
		}
	}
	k := n.n
	for i, h := range n.w.nodes {
		reset := !n.cut[1-i]
		n.w.after(n.w.between(50*us, 20*ms), func() { h.linkDown(k, reset) })
	}
	n.connectLater()
}

func (n *network) heal() {
	n.slow, n.stuck = [2]int64{}, [2]bool{}
	for i := range n.cut {
		n.uncut(i)
	}
}

func (n *network) uncut(i int) {
	n.cut[i] = false
	n.resume(i)
}

func (n *network) unstick(i int) {
	n.stuck[i] = false
	n.resume(i)
}
