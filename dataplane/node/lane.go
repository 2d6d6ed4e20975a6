package node

import (
	"sync"

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
	wg *sync.WaitGroup // of the node, which waits for it
	do func(*change)

	mu           sync.Mutex
	queue, spare []change
	running      bool
}

// change is a write of this node's own, with op set, or one for the peer.
type change struct {
	n    *Node
	op   *pair.Op
	msg  *pair.Msg
	link uint64
	file *store.File // where msg goes: as the log had it when msg came
}

func (c *change) do() {
	if c.op != nil {
		c.n.storeDoneAsync(c.op, c.n.runOp(c.op, false))
		return
	}
	c.n.appliedAsync(c.link, c.msg, c.n.applyMsg(c.file, c.msg, false))
	c.n.peer.applies.Done()
}

// add puts a change at the end. It never blocks.
func (l *lane) add(c change) {
	l.mu.Lock()
	l.queue = append(l.queue, c)
	idle := !l.running
	l.running = true
	l.mu.Unlock()
	if idle {
		l.wg.Go(l.run)
	}
}

func (l *lane) run() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.running = false
			l.mu.Unlock()
			return
		}
		list := l.queue
		l.queue, l.spare = l.spare, nil
		l.mu.Unlock()
		for i := range list {
			l.do(&list[i])
			list[i] = change{} // its buffer has another use now
		}
		l.mu.Lock()
		if cap(list) <= laneKeep {
			l.spare = list[:0]
		}
		l.mu.Unlock()
	}
}

// laneKeep is the longest list of changes that an idle LUN keeps memory for.
const laneKeep = 64

// change does a write of this node's own: here if the goroutine at hand may wait for a disk. One
// that has to read before, the rest of a block or checksums, is a reader's.
func (n *Node) change(a *actions, o *pair.Op, durable bool) {
	switch e := n.md.tables.Load().units[o.LUN]; {
	case !inlineOp(o.Cmd, durable):
		n.run.wg.Go(func() { n.storeDoneAsync(o, n.runOp(o, durable)) })
	case e != nil && !e.file.Prompt(o.Cmd.Off, o.Cmd.Len):
		e.readers.read(o.Cmd.Len, func() { n.storeDoneAsync(o, n.runOp(o, durable)) })
	case a.at == anywhere || e == nil:
		n.storeDone(a, o, n.runOp(o, durable))
	default:
		e.lane.add(change{n: n, op: o})
	}
}

// applyHere does a mirrored write or a copied range. The file is looked up at once: an entry of the
// log that came after msg may remove the object, and what came before it is no failure. What has to
// read before it writes is a reader's.
func (n *Node) applyHere(a *actions, msg *pair.Msg, durable bool) {
	link, t := n.peer.linkN.Load(), n.md.tables.Load()
	e, f := t.units[msg.LUN], t.file(msg.LUN)
	small := !durable && len(msg.Data) <= inlineMax && msg.Kind != scsi.OpUnmap && msg.Kind != scsi.OpWriteSame
	switch {
	case small && e != nil && !f.Prompt(msg.Off, msg.Len):
		n.peer.applies.Add()
		e.readers.read(msg.Len, func() {
			n.appliedAsync(link, msg, n.applyMsg(f, msg, durable))
			n.peer.applies.Done()
		})
	case small && (a.at == anywhere || f == nil):
		n.peer.applies.Add() // it may be a goroutine that the next link does not wait for otherwise
		n.applied(a, link, msg, n.applyMsg(f, msg, durable))
		n.peer.applies.Done()
	case small && e != nil:
		n.peer.applies.Add()
		e.lane.add(change{n: n, msg: msg, link: link, file: f})
	default:
		n.async(func() { n.appliedAsync(link, msg, n.applyMsg(f, msg, durable)) })
	}
}
