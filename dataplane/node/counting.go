package node

import (
	"time"

	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// What hosts do with each LUN is counted where their commands end: at the node at which the host
// logged in, and once more at the owner if that is the other node. Commands that never started are
// no work and are not counted.

// countHost counts a command of a host that logged in here.
func (n *Node) countHost(o *pair.Op, now int64) {
	way := count.Own
	if o.Forwarded {
		way = count.Forwarded
	}
	n.count(o, way, now)
}

func (n *Node) count(o *pair.Op, way count.Way, now int64) {
	s := o.Cmd
	if s == nil || !o.Started || s.Result == scsi.Busy || s.Result == scsi.Unavailable {
		return
	}
	e := n.md.tables.Load().units[o.LUN]
	if e == nil {
		return // the benchmark's unit, or a LUN that was deleted meanwhile
	}
	k, bytes := count.Other, int64(0)
	switch s.Kind {
	case scsi.OpRead:
		k, bytes = count.Read, s.Len
	case scsi.OpWrite, scsi.OpCompareWrite, scsi.OpWriteSame:
		k, bytes = count.Write, s.Len
	}
	e.counts.Add(k, way, bytes, time.Duration(now-s.Arrived))
	if k != count.Other && way != count.Remote { // the node where the host logged in counts for it
		e.hosts.Add(s.Nexus.Initiator, bytes, way, now)
	}
}

// Process implements control.Node.
func (n *Node) Process() (incarnation uint64, since time.Duration) {
	return n.own.process, time.Duration(n.boottime())
}

// Work implements control.Node.
func (n *Node) Work(uuid string) (owner string, work count.Totals) {
	e := n.entryOf(uuid)
	if e == nil {
		return "", work
	}
	return n.ownerOf(e), e.counts.Read()
}
