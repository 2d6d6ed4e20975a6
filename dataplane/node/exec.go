package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Every call into the machine takes n.mu, begins what it sends while holding it, so that frames
// leave in the machine's order, and does the rest after. Store work that ends at once is done by
// the goroutine at hand: a read at the owner that the page cache answers never changes goroutine.
// One that has to wait for the disk does (readers.go).

type actions struct {
	list []pair.Action
	sent bool  // something is queued on the link
	now  int64 // of the call that these are of
	at   stand
}

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
	b := actionPool.Get().(*actions)
	b.list = n.m.Take(b.list)
	for i := range b.list {
		switch x := &b.list[i]; x.Kind {
		case pair.ActSend:
			if x.Msg.Ended != nil {
				n.count(x.Msg.Ended, count.Remote, now)
			}
			n.peer.link.Send(n.peer.linkN.Load(), x.Msg)
			a.sent = true
		case pair.ActClear:
			n.clearBits(x) // in memory, before any ActIntend that comes later
		default:
			a.list = append(a.list, *x)
		}
	}
	clear(b.list)
	b.list = b.list[:0]
	actionPool.Put(b)
}

// perform carries out actions and what they lead to. It returns true when cur was completed here.
func (n *Node) perform(a *actions, cur current) (completed bool) {
	for i := 0; ; i++ {
		if a.sent {
			a.sent = false
			n.peer.link.Kick()
		}
		if i == len(a.list) {
			break
		}
		x := &a.list[i]
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
				s.Done(s)
			}
			n.io.ops.put(o)
		case pair.ActApply:
			n.applyHere(a, x.Msg, x.Durable)
		default:
			n.slow(*x)
		}
	}
	clear(a.list)
	a.list, a.at = a.list[:0], anywhere
	actionPool.Put(a)
	return completed
}

func (n *Node) storeDone(a *actions, o *pair.Op, res scsi.Result) {
	n.mu.Lock()
	now := n.boottime()
	n.m.StoreDone(now, o, res)
	n.takeLocked(a, now)
	n.mu.Unlock()
}

func (n *Node) storeDoneAsync(o *pair.Op, res scsi.Result) {
	n.do(func(m *pair.Machine, now int64) { m.StoreDone(now, o, res) })
}

func (n *Node) applied(a *actions, link uint64, msg *pair.Msg, res scsi.Result) {
	n.io.buffers.put(msg.Data)
	msg.Data = nil
	n.mu.Lock()
	now := n.boottime()
	n.m.Applied(now, link, msg, res)
	n.takeLocked(a, now)
	n.mu.Unlock()
}

func (n *Node) appliedAsync(link uint64, msg *pair.Msg, res scsi.Result) {
	a := actionPool.Get().(*actions)
	n.applied(a, link, msg, res)
	n.perform(a, current{})
}

// slow begins the actions that are not on the command path.
func (n *Node) slow(x pair.Action) {
	link := n.peer.linkN.Load()
	switch x.Kind {
	case pair.ActProbe:
		n.run.wg.Go(func() {
			if n.probeDisk(x.LUN) {
				n.do(func(m *pair.Machine, now int64) { m.Probed(now, x.ID) })
			}
		})
	case pair.ActFlush:
		n.run.wg.Go(func() { n.storeDoneAsync(x.Op, n.flush(x.Op.LUN, x.Durable)) })
	case pair.ActCompare:
		n.run.wg.Go(func() { n.storeDoneAsync(x.Op, n.compare(x.Op)) })
	case pair.ActRepairRead:
		n.run.wg.Go(func() { n.storeDoneAsync(x.Op, n.repairRead(x.Op)) })
	case pair.ActCopyRead:
		n.run.wg.Go(func() { n.storeDoneAsync(x.Op, n.copyRead(x.Op)) })
	case pair.ActCopyFree:
		n.io.buffers.put(x.Op.Buf)
		x.Op.Buf = nil
	case pair.ActPeerFlush:
		n.async(func() {
			res := scsi.WriteError
			if x.Msg.Flags&pair.FlagProbe == 0 {
				res = n.flush(x.Msg.LUN, x.Msg.Flags&pair.FlagSums != 0)
			} else if n.probeDisk(x.Msg.LUN) {
				res = scsi.OK
			}
			n.appliedAsync(link, x.Msg, res)
		})
	case pair.ActCompareSum:
		n.async(func() {
			need, res := n.compareSum(x.Msg)
			n.do(func(m *pair.Machine, now int64) { m.SumDone(now, link, x.Msg, need, res) })
		})
	case pair.ActFetch:
		n.async(func() { n.fetch(link, x.Msg) })
	case pair.ActHeal:
		n.run.wg.Go(func() { n.storeDoneAsync(x.Op, n.heal(x.Op)) })
	case pair.ActAccept:
		n.run.wg.Go(func() { n.storeDoneAsync(x.Op, n.accept(x.Op)) })
	case pair.ActFlushAll:
		n.async(func() {
			res := n.syncAll(x.Msg != nil)
			if x.Msg != nil {
				if err := errors.Join(n.clearCopying(n.wholeCopies()), n.store.Trust(), n.trustVolumes()); err != nil && res == scsi.OK { // a full copy is on stable storage now (R12)
					res = scsi.WriteError
				}
				n.appliedAsync(link, x.Msg, res)
			} else {
				n.do(func(m *pair.Machine, now int64) { m.SelfFlushed(now, res == scsi.OK) })
			}
		})
	case pair.ActSaveEpoch:
		n.run.wg.Go(func() {
			err := n.saveEpoch(x.Record, x.Durable, x.ID, x.State)
			if err != nil {
				n.log.Error("cannot save the epoch", "err", err)
			}
			n.do(func(m *pair.Machine, now int64) { m.EpochSaved(now, x.Record.Epoch, err == nil) })
		})
	case pair.ActArbiterGet, pair.ActArbiterCAS:
		n.run.wg.Go(func() { n.askArbiter(x) })
	case pair.ActAppend:
		n.run.wg.Go(func() { n.apply(x.Index, x.Meta, x.Joining) })
	case pair.ActProposed:
		n.proposalEnded(x)
	case pair.ActInstall:
		n.async(func() { n.install(link, x.Msg) })
	case pair.ActExport:
		n.run.wg.Go(n.export)
	case pair.ActResyncList:
		n.run.wg.Go(n.listForResync)
	case pair.ActTakeAll:
		n.run.wg.Go(n.takeAll)
	case pair.ActIntend:
		n.run.wg.Go(func() { n.intend(x.LUN, x.Regions) }) // of hosts' writes too; the machine keeps what waits for it in order
	case pair.ActSaveState:
		n.run.wg.Go(func() {
			err := n.saveState(x.ID, x.State)
			if err != nil {
				n.log.Error("cannot save the node's own state", "err", err)
			}
			n.do(func(m *pair.Machine, now int64) { m.StateSaved(now, x.ID, err == nil) })
		})
	case pair.ActProve:
		x.Alive.Ask(func() { n.do(func(m *pair.Machine, now int64) { m.Proved(now, x.Alive) }) })
	case pair.ActMarkLost:
		n.run.wg.Go(func() { n.markLost(x.Units) })
	case pair.ActDrain:
		n.killGathering(x.Host, x.LUN)
		n.iscsi.DrainHost(x.Host, func() { n.do(func(m *pair.Machine, now int64) { m.Drained(now, x.ID) }) })
	case pair.ActQuiet:
		n.quietEnded(x)
	case pair.ActRequest:
		n.request(link, x.Msg)
	case pair.ActALUA:
		n.aluaChanged(x.LUN)
	case pair.ActEvent:
		n.log.Info("pair: " + x.Text)
		if x.Damage != nil { // before the event: a reader of the event may ask for the finding at once
			n.seen.damage.add(x.Damage, time.Now())
		}
		n.event("pair", x.Text)
		n.waits.standing.changed()
	case pair.ActDropHosts:
		n.run.wg.Go(func() { n.iscsi.DropConnections(x.Text) })
	case pair.ActProveHosts:
		n.run.wg.Go(func() { n.iscsi.DropSilent(x.Text) })
	case pair.ActDropLink:
		n.peer.link.Break(x.Text)
	}
}

// async is work for the peer, which has to end before the next link begins (R4).
func (n *Node) async(f func()) {
	n.peer.applies.Add()
	n.run.wg.Go(func() {
		defer n.peer.applies.Done()
		f()
	})
}

// arbiterTimeout bounds one attempt (the machine tries again).
const arbiterTimeout = time.Second

func (n *Node) askArbiter(x pair.Action) {
	ctx, cancel := context.WithTimeout(n.run.ctx, arbiterTimeout)
	defer cancel()
	var rec pair.Record
	var version string
	var err error
	out := pair.Got
	if x.Kind == pair.ActArbiterGet {
		rec, version, err = n.arb.Get(ctx)
	} else {
		rec = *x.Record
		version, err = n.arb.CompareAndSwap(ctx, x.Version, rec)
	}
	text := ""
	switch {
	case err == nil:
	case errors.Is(err, arbiter.ErrNotFound):
		out = pair.Missing
	case errors.Is(err, arbiter.ErrConflict):
		out = pair.Conflict
	default:
		out, text = pair.Unknown, err.Error()
		n.seen.metrics.arbiterErrors.Add(1)
		n.log.Warn("arbiter", "err", err)
	}
	n.do(func(m *pair.Machine, now int64) { m.ArbiterDone(now, out, &rec, version, text) })
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

// Message implements link.Handler.
func (h *linkHandler) Message(k uint64, msg *pair.Msg) {
	n := (*Node)(h)
	a := actionPool.Get().(*actions)
	if a.at = onLink; msg.Type == pair.MsgHeartbeat || msg.Type == pair.MsgHeartbeatAck {
		a.at = onTimer
	}
	n.mu.Lock()
	now := n.boottime()
	n.m.Receive(now, k, msg)
	n.takeLocked(a, now)
	n.mu.Unlock()
	n.perform(a, current{})
}

// Down implements link.Handler.
func (h *linkHandler) Down(k uint64, reset bool, why string) {
	n := (*Node)(h)
	n.log.Info("link is down", "link", k, "reset", reset, "why", why)
	n.failCalls()
	n.do(func(m *pair.Machine, now int64) { m.LinkDown(now, k, reset) })
}
