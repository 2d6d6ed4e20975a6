package node

import (
	"sync"

	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/link"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Every call into the machine takes n.mu, begins what it sends while holding it, so that frames
// leave in the machine's order, and does the rest after. Store work that ends at once is done by
// the goroutine at hand: a read at the owner that the page cache answers never changes goroutine.
// One that has to wait for the disk does (readers.go).

type actions struct {
	list  []pair.Action
	sent  bool    // something is queued on the link
	ended []ended // store work that the machine is still to be told of
	now   int64   // of the call that these are of
	at    stand
	out   *scsi.Outbox // of the goroutine at hand, nil: all that is sent is sent at once
	own   scsi.Outbox  // for out, where the goroutine has none
	// mirrored counts those of ended that the next link waits for (R4), until they are told.
	mirrored int
}

// ended is store work that has ended: of an op, or of a message of a link.
type ended struct {
	op   *pair.Op
	msg  *pair.Msg
	link uint64
	res  scsi.Result
}

// actEnded is the end of a command that the other node has forwarded. It is the node's own action:
// the machine's is the message with the result.
const actEnded = pair.ActionKind(255)

// stand is what the goroutine at hand may do.
type stand uint8

const (
	anywhere stand = iota
	onLink         // it reads the link: it may look at the page cache, and waits for no disk
	onTimer        // it keeps the lease: it touches no disk (R3)
)

var actionPool = sync.Pool{New: func() any { return &actions{list: make([]pair.Action, 0, 16)} }}

// opPool keeps the ops of commands that have ended for those that come. Each node has its own: no
// op of one node, and none that a test has made, gets into the machine of another.
type opPool struct{ pool sync.Pool }

func (p *opPool) get() *pair.Op {
	if o, _ := p.pool.Get().(*pair.Op); o != nil {
		return o
	}
	return new(pair.Op)
}

func (p *opPool) put(o *pair.Op) {
	o.Reset()
	p.pool.Put(o)
}

// current is the command whose Submit is under way. Its op may be another command's before Submit
// returns: another goroutine has ended the first one, and the second one may even end in the list
// at hand. The number of uses tells them apart.
type current struct {
	op   *pair.Op
	uses uint64
}

func (c current) is(o *pair.Op) bool { return o == c.op && o.Uses() == c.uses }

// do makes one call and carries out what follows from it.
func (n *Node) do(f func(m *pair.Machine, now int64)) { n.enter(anywhere, f) }

// doTimer is do for a goroutine that keeps the lease.
func (n *Node) doTimer(f func(m *pair.Machine, now int64)) { n.enter(onTimer, f) }

func (n *Node) enter(at stand, f func(m *pair.Machine, now int64)) {
	a := actionPool.Get().(*actions)
	a.at = at
	n.mu.Lock()
	now := n.boottime()
	f(n.m, now)
	n.takeLocked(a, now)
	n.mu.Unlock()
	n.perform(a, current{})
}

// takeLocked moves the machine's actions into a; sends are begun at once.
func (n *Node) takeLocked(a *actions, now int64) {
	a.now = now
	if !n.m.Pending() {
		return
	}
	if len(a.list) == 0 {
		a.list = n.begin(a, n.m.Take(a.list))
		return
	}
	b := actionPool.Get().(*actions)
	b.list = n.begin(a, n.m.Take(b.list))
	a.list = append(a.list, b.list...)
	clear(b.list)
	b.list = b.list[:0]
	actionPool.Put(b)
}

// begin does what is done under the lock, and returns the rest of a list, in the same memory: an
// action is large, and most lists are kept as they are.
func (n *Node) begin(a *actions, list []pair.Action) []pair.Action {
	kept := 0
	for i := range list {
		x := &list[i]
		switch x.Kind {
		case pair.ActSend:
			o := x.Msg.Ended
			n.peer.link.Send(n.peer.linkN.Load(), x.Msg) // x.Msg is the link's from here on
			a.sent = true
			if o == nil {
				continue
			}
			*x = pair.Action{Kind: actEnded, Op: o}
		case pair.ActClear:
			n.clearBits(x) // in memory, before any ActIntend that comes later
			continue
		}
		if kept != i {
			list[kept] = *x
		}
		kept++
	}
	clear(list[kept:])
	return list[:kept]
}

// perform carries out actions and what they lead to. It returns true when cur was completed here.
func (n *Node) perform(a *actions, cur current) (completed bool) {
	completed = n.carryOut(a, cur)
	a.recycle()
	return completed
}

func (a *actions) recycle() {
	a.at, a.out, a.mirrored = anywhere, nil, 0
	actionPool.Put(a)
}

// carryOut is perform of actions that will be used further.
func (n *Node) carryOut(a *actions, cur current) (completed bool) {
	for i := 0; ; {
		n.leaveSent(a)
		if i == len(a.list) {
			clear(a.list)
			a.list, i = a.list[:0], 0
			if len(a.ended) == 0 {
				return completed
			}
			n.tellEnded(a)
			continue
		}
		x := &a.list[i] // stays as it is when a.list grows
		i++
		switch x.Kind {
		case pair.ActStore:
			if o := x.Op; reads(o.Cmd.Kind) {
				n.look(a, o, a.at != onTimer)
			} else {
				n.change(a, o, x.Durable)
			}
		case pair.ActReply:
			o := x.Op
			n.countHost(o, a.now)
			if cur.is(o) {
				completed = true
			} else if s := o.Cmd; s.Done != nil {
				s.Ends = a.out
				s.Done(s)
			}
			n.io.ops.put(o)
		case actEnded:
			n.remoteEnded(x.Op, a.now)
		case pair.ActApply:
			n.applyHere(a, x.Msg, x.Durable)
		default:
			n.mayWait(a)
			n.slow(*x)
		}
	}
}

// remoteEnded counts a command that the other node has forwarded, and takes back its op and the
// data that came with it. Both may still be waiting to be sent on a link; that link is broken
// before they are used again (pair.ActDropLink), as for a host's command.
func (n *Node) remoteEnded(o *pair.Op, now int64) {
	n.count(o, count.Remote, now)
	if o.Cmd.Kind == scsi.OpWrite {
		n.io.buffers.put(o.Cmd.Data)
	}
	n.io.ops.put(o)
}

// mayWait is called before an action that may wait: it tells the machine what has ended, and sends
// what is to be sent.
func (n *Node) mayWait(a *actions) {
	if len(a.ended) > 0 {
		n.tellEnded(a)
	}
	n.leaveSent(a)
	a.out.Send()
}

// leaveSent leaves what is queued on the link to be sent.
func (n *Node) leaveSent(a *actions) {
	if a.sent {
		a.sent = false
		a.out.Leave(&n.peer)
	}
}

// tellEnded tells the machine what has ended, in one call's time: a lock and a clock for each would
// cost more than the machine does.
func (n *Node) tellEnded(a *actions) {
	n.mu.Lock()
	now := n.boottime()
	for i := range a.ended {
		e := &a.ended[i]
		if e.op != nil {
			n.m.StoreDone(now, e.op, e.res)
			continue
		}
		n.m.Applied(now, e.link, e.msg, e.res)
		if e.msg.Type == pair.MsgMirror { // the machine and the store refer to it no more
			link.Recycle(e.msg)
		}
	}
	n.takeLocked(a, now)
	n.mu.Unlock()
	clear(a.ended)
	a.ended = a.ended[:0]
}

// storeDone notes that work of an op has ended.
func (n *Node) storeDone(a *actions, o *pair.Op, res scsi.Result) {
	a.ended = append(a.ended, ended{op: o, res: res})
}

func (n *Node) storeDoneAsync(o *pair.Op, res scsi.Result) {
	a := actionPool.Get().(*actions)
	n.storeDone(a, o, res)
	n.perform(a, current{})
}

// applied notes that work for the peer has ended.
func (n *Node) applied(a *actions, k uint64, msg *pair.Msg, res scsi.Result) {
	n.io.buffers.put(msg.Data)
	msg.Data = nil
	a.ended = append(a.ended, ended{msg: msg, link: k, res: res})
}

func (n *Node) appliedAsync(k uint64, msg *pair.Msg, res scsi.Result) {
	a := actionPool.Get().(*actions)
	n.applied(a, k, msg, res)
	n.perform(a, current{})
}

// linkHandler is the node as the link sees it.
type linkHandler Node

// Up implements link.Handler.
func (h *linkHandler) Up(k uint64) {
	n := (*Node)(h)
	n.peer.applies.Wait() // nothing of an older link is at work in the store any more (R4)
	n.peer.linkN.Store(k)
	n.log.Info("link is up", "link", k)
	n.do(func(m *pair.Machine, now int64) { m.LinkUp(now, k) })
}

// Messages implements link.Handler.
func (h *linkHandler) Messages(k uint64, list []*pair.Msg) {
	n := (*Node)(h)
	a := actionPool.Get().(*actions)
	if a.at, a.out = onLink, &n.peer.out; isBeat(list[0]) { // those have a goroutine of their own
		a.at, a.out = onTimer, nil
	}
	out := a.out
	n.mu.Lock()
	now := n.boottime()
	n.receiveLocked(now, k, list)
	n.takeLocked(a, now)
	n.mu.Unlock()
	n.perform(a, current{})
	out.Send()
	for _, msg := range list {
		if msg == nil {
			continue
		}
		if msg.Type == pair.MsgForwardResult {
			n.io.buffers.put(msg.Data)
		}
		link.Recycle(msg)
	}
}

// receiveLocked gives messages to the machine. What is not passing belongs to the work that it
// begins, which may end before the caller does: it is taken from the list.
func (n *Node) receiveLocked(now int64, k uint64, list []*pair.Msg) {
	var at pair.LUNID
	sound := false
	defer func() {
		if !sound {
			n.blame(&sound, at)
		}
	}()
	for i, msg := range list {
		at = msg.LUN
		n.m.Receive(now, k, msg)
		if !passing(msg) {
			list[i] = nil
		}
	}
	sound = true
}

// passing reports that the machine has copied what it needs of a message that it was given, but for
// the data of a forwarded write, which it keeps. A COMPARE AND WRITE keeps what it compares with,
// which is in Meta.
func passing(msg *pair.Msg) bool {
	switch msg.Type {
	case pair.MsgForward:
		return msg.Kind != scsi.OpCompareWrite
	case pair.MsgMirrorAck, pair.MsgForwardResult, pair.MsgHeartbeat, pair.MsgHeartbeatAck:
		return true
	}
	return false
}

// messageSent takes a message back, and the buffer of a read that this node did for the other one.
// The rest of the data is that of hosts' commands. What a link that breaks has not sent is left to
// the collector.
func (n *Node) messageSent(msg *pair.Msg) {
	switch msg.Type {
	case pair.MsgForwardResult:
		n.io.buffers.put(msg.Data)
	case pair.MsgMirror, pair.MsgMirrorAck, pair.MsgForward:
	default:
		return
	}
	link.Recycle(msg)
}

func isBeat(msg *pair.Msg) bool {
	return msg.Type == pair.MsgHeartbeat || msg.Type == pair.MsgHeartbeatAck
}

// Down implements link.Handler.
func (h *linkHandler) Down(k uint64, reset bool, why string) {
	n := (*Node)(h)
	n.log.Info("link is down", "link", k, "reset", reset, "why", why)
	n.failCalls()
	n.do(func(m *pair.Machine, now int64) { m.LinkDown(now, k, reset) })
}
