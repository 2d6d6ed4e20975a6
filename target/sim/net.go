package sim

import (
	"slices"
	"strconv"

	"github.com/gemel-storage/gemel/target/pair"
)

// network is the link between the nodes. A connection delivers in order; while a direction is cut its messages wait,
// as TCP's do, and come late unless the connection was given up. Heartbeats have a connection of their own.
type network struct {
	w       *world
	n       uint64
	up      bool
	cut     [2]bool // direction from that node
	next    [2][2]int64
	waiting [2][]func()
	slow    int64 // added to every delay
	dialing bool
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
		if a.m == nil || b.m == nil || n.cut[0] || n.cut[1] || a.frozenNow() || b.frozenNow() || a.linkUp || b.linkUp {
			n.connectLater()
			return
		}
		n.n++
		n.up = true
		n.next = [2][2]int64{}
		n.waiting = [2][]func(){}
		for _, h := range n.w.nodes {
			h.linkUpAt(n.n)
		}
	})
}

// send carries a message of link k from a node.
func (n *network) send(from pair.Node, k uint64, msg *pair.Msg) {
	if !n.up || k != n.n {
		return
	}
	c := *msg
	c.Meta, c.Data, c.Op = slices.Clone(msg.Meta), slices.Clone(msg.Data), nil
	lane := 0
	if msg.Type == pair.MsgHeartbeat || msg.Type == pair.MsgHeartbeatAck {
		lane = 1
	}
	deliver := func() { n.deliver(from, lane, k, &c) }
	if n.cut[from] {
		n.waiting[from] = append(n.waiting[from], deliver)
		return
	}
	deliver()
}

func (n *network) deliver(from pair.Node, lane int, k uint64, msg *pair.Msg) {
	at := max(n.w.now+n.w.between(20*us, 400*us)+n.slow, n.next[from][lane])
	n.next[from][lane] = at
	n.w.after(at-n.w.now, func() {
		if n.cut[from] {
			n.waiting[from] = append(n.waiting[from], func() { n.deliver(from, lane, k, msg) })
			return
		}
		n.w.nodes[from.Peer()].arrive(k, msg)
	})
}

// drop ends the present link: each node learns of it by itself, a dead one never.
func (n *network) drop(why string) {
	if !n.up {
		return
	}
	n.w.trace("link %d drops: %s", n.n, why)
	n.up = false
	n.waiting = [2][]func(){}
	k := n.n
	for i, h := range n.w.nodes {
		reset := !n.cut[1-i]
		n.w.after(n.w.between(50*us, 20*ms), func() { h.linkDown(k, reset) })
	}
	n.connectLater()
}

func (n *network) heal() {
	n.slow = 0
	for i := range n.cut {
		n.uncut(i)
	}
}

func (n *network) uncut(i int) {
	n.cut[i] = false
	late := n.waiting[i]
	n.waiting[i] = nil
	for _, f := range late {
		f()
	}
}

// arbiterSim keeps the record. Answers can be late or lost; a write whose answer is lost may have landed, or may
// land later.
type arbiterSim struct {
	w       *world
	rec     pair.Record
	version int
	down    bool
	flaky   bool
}

func (a *arbiterSim) call(h *host, x pair.Action) {
	w := a.w
	life := h.life
	answer := func(out pair.Outcome, rec pair.Record, version string) func() {
		return func() {
			h.when(life, func() { h.m.ArbiterDone(h.clock(), out, &rec, version, "no answer") })
		}
	}
	lost := a.down || a.flaky && w.chance(0.4)
	there, back := w.between(200*us, 8*ms), w.between(200*us, 8*ms)
	act := func() (pair.Outcome, pair.Record, string) {
		if x.Kind == pair.ActArbiterGet {
			if a.version == 0 {
				return pair.Missing, pair.Record{}, ""
			}
			return pair.Got, a.copy(), a.ver()
		}
		if x.Version != a.ver() {
			return pair.Conflict, pair.Record{}, ""
		}
		if x.Record.Epoch < a.rec.Epoch {
			w.fail("the record went back from epoch %d to %d", a.rec.Epoch, x.Record.Epoch)
		}
		a.rec = *x.Record
		a.rec.Members = slices.Clone(x.Record.Members)
		a.version++
		w.trace("arbiter: version %d epoch %d members %d (by %v)", a.version, a.rec.Epoch, len(a.rec.Members), h.id)
		return pair.Got, a.copy(), a.ver()
	}
	if lost {
		if !a.down && w.chance(0.5) {
			w.after(w.between(ms, 3*s), func() { act() }) // lands, maybe late; nobody hears of it
		}
		w.after(s, answer(pair.Unknown, pair.Record{}, ""))
		return
	}
	w.after(there, func() {
		out, rec, v := act()
		w.after(back, answer(out, rec, v))
	})
}

func (a *arbiterSim) ver() string {
	if a.version == 0 {
		return ""
	}
	return strconv.Itoa(a.version)
}

func (a *arbiterSim) copy() pair.Record {
	r := a.rec
	r.Members = slices.Clone(a.rec.Members)
	return r
}
