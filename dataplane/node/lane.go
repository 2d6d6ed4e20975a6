package node

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// lane does the changes of one LUN that the link asks for, one after the other in their order, on a
// goroutine that lives as long as there are any: the one that reads the link waits neither for a
// disk nor for the lock of a file. Filesystems let one write into a file at a time, so more
// goroutines would only queue there. What may be in a lane is bounded where it comes from, by the
// commands and copies that the owner has under way.
type lane struct {
	tasks *tasks         // of the node, which waits for it
	do    func([]change) // changes that follow each other

	mu           sync.Mutex
	queue, spare []change
	running      atomic.Bool // written with mu held
	runFn        func()      // run, made once: a closure for each start would be an allocation
}

// idle reports that nothing is in the lane. A write beside one that is under way would wait for the
// file.
func (l *lane) idle() bool { return !l.running.Load() }

// change is a write of this node's own, with op set, or one for the peer.
type change struct {
	n    *Node
	op   *pair.Op
	msg  *pair.Msg
	link uint64
	file *store.File // where msg goes: as the log had it when msg came
}

// do does a change and notes it in a. A change that may wait comes after the machine has been told
// of the changes before it, and their answers have been sent: no answer waits for the next change.
func (c *change) do(a *actions) {
	sound := false
	defer c.n.blame(&sound, c.lun())
	n, res, first := c.n, scsi.OK, len(a.ended) == 0
	switch {
	case c.op != nil && !first && n.opAtOnce(c.op), c.op == nil && !first && msgAtOnce(c.file, c.msg):
	default:
		if !first {
			n.carryOut(a, current{})
			a.out.Send()
		}
		if c.op != nil {
			res = n.runOp(c.op, false)
		} else {
			res = n.applyMsg(c.file, c.msg, false)
		}
	}
	c.done(a, res)
	sound = true
}

func (c *change) lun() pair.LUNID {
	if c.op != nil {
		return c.op.LUN
	}
	return c.msg.LUN
}

// doChanges does changes of one LUN one after the other, and tells the machine of them together.
func doChanges(list []change) {
	n := list[0].n
	a := n.together()
	for i := range list {
		list[i].do(a)
	}
	n.tell(a)
}

// opAtOnce does a write of this node's own if that waits for nothing, not even for another write
// into the file. False: it is not done.
func (n *Node) opAtOnce(o *pair.Op) bool {
	s := o.Cmd
	if s.Kind != scsi.OpWrite && s.Kind != scsi.OpCompareWrite {
		return false
	}
	f := n.file(o.LUN)
	return f != nil && f.TryWrite(s.Data, s.Off)
}

// msgAtOnce does so with a write for the peer.
func msgAtOnce(f *store.File, msg *pair.Msg) bool {
	return f != nil && msg.Type == pair.MsgMirror && msg.Kind == scsi.OpWrite && msg.Flags&pair.FlagRepair == 0 && f.TryWrite(msg.Data, msg.Off)
}

// add puts a change at the end. It never blocks.
func (l *lane) add(c change) {
	l.mu.Lock()
	l.queue = append(l.queue, c)
	idle := !l.running.Swap(true)
	if l.runFn == nil {
		l.runFn = func() {
			defer l.tasks.end(taskCommand)
			l.run()
		}
	}
	l.mu.Unlock()
	if idle {
		l.tasks.begin(taskCommand)
		go l.runFn()
	}
}

func (l *lane) run() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.running.Store(false)
			l.mu.Unlock()
			return
		}
		list := l.queue
		l.queue, l.spare = l.spare, nil
		l.mu.Unlock()
		for part := range slices.Chunk(list, laneBatch) {
			l.do(part)
		}
		clear(list) // its buffers have another use now
		l.mu.Lock()
		if cap(list) <= laneKeep {
			l.spare = list[:0]
		}
		l.mu.Unlock()
	}
}

// laneBatch bounds how many changes one call tells the machine of.
const laneBatch = 8

// atOnceMax is the largest write that the goroutine that reads the link does itself, in bytes.
const atOnceMax = 64 << 10

// laneKeep is the longest list of changes that an idle LUN keeps memory for.
const laneKeep = 64

// change does a write of this node's own: here if the goroutine at hand may wait for a disk. One
// that has to read before, the rest of a block or checksums, is a reader's.
func (n *Node) change(a *actions, o *pair.Op, durable bool) {
	sound := false
	defer n.blame(&sound, o.LUN)
	poison(o.Cmd)
	e := n.md.tables.Load().units[o.LUN]
	if e != nil && o.Cmd.Kind == scsi.OpWrite {
		e.tier.write(e.file, o.Cmd.Off, o.Cmd.Len)
	}
	switch {
	case e != nil && durable && inlineOp(o.Cmd, false):
		n.run.tasks.Go(taskCommand, func() { n.writeDurable(e.file, o.Cmd.Data, o.Cmd.Off, &change{n: n, op: o}) })
	case !inlineOp(o.Cmd, durable):
		n.run.tasks.Go(taskCommand, func() { n.storeDoneAsync(o, n.runOp(o, durable)) })
	case a.at == onLink && len(o.Cmd.Data) <= atOnceMax && e != nil && e.lane.idle() && n.opAtOnce(o):
		n.storeDone(a, o, scsi.OK)
	case e != nil && !e.file.Prompt(o.Cmd.Off, o.Cmd.Len):
		e.readers.read(o.Cmd.Len, func() { n.storeDoneAsync(o, n.runOp(o, durable)) })
	case a.at == anywhere || e == nil:
		n.mayWait(a)
		n.storeDone(a, o, n.runOp(o, durable))
	default:
		e.lane.add(change{n: n, op: o})
	}
	sound = true
}

// applyHere does a mirrored write or a copied range. The file is looked up at once: an entry of the
// log that came after msg may remove the object, and what came before it is no failure. What has to
// read before it writes is a reader's.
func (n *Node) applyHere(a *actions, msg *pair.Msg, durable bool) {
	sound := false
	defer n.blame(&sound, msg.LUN)
	link, t := n.peer.linkN.Load(), n.md.tables.Load()
	e, f := t.units[msg.LUN], t.file(msg.LUN)
	if e != nil && msg.Type == pair.MsgMirror && msg.Kind == scsi.OpWrite && msg.Flags&pair.FlagRepair == 0 {
		e.tier.write(e.file, msg.Off, msg.Len)
	}
	small := !durable && len(msg.Data) <= inlineMax && msg.Kind != scsi.OpUnmap && msg.Kind != scsi.OpWriteSame
	switch {
	case small && a.at == onLink && len(msg.Data) <= atOnceMax && e != nil && e.lane.idle() && msgAtOnce(f, msg):
		n.applied(a, link, msg, scsi.OK)
	case small && e != nil && !f.Prompt(msg.Off, msg.Len):
		n.peer.applies.Add()
		e.readers.read(msg.Len, func() {
			n.appliedAsync(link, msg, n.applyMsg(f, msg, durable))
			n.peer.applies.Done()
		})
	case small && (a.at == anywhere || f == nil):
		n.peer.applies.Add() // it may be a goroutine that the next link does not wait for otherwise
		n.mayWait(a)
		n.applied(a, link, msg, n.applyMsg(f, msg, durable))
		n.tellEnded(a)
		n.peer.applies.Done()
	case small && e != nil:
		n.peer.applies.Add()
		e.lane.add(change{n: n, msg: msg, link: link, file: f})
	case durable && f != nil && msg.Type == pair.MsgMirror && msg.Kind == scsi.OpWrite && msg.Flags&pair.FlagRepair == 0 && len(msg.Data) <= inlineMax:
		n.peer.applies.Add()
		n.run.tasks.Go(taskApply, func() { n.writeDurable(f, msg.Data, msg.Off, &change{n: n, msg: msg, link: link}) })
	default:
		n.async(func() { n.appliedAsync(link, msg, n.applyMsg(f, msg, durable)) })
	}
	sound = true
}
