package node

import (
	"errors"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// The write-intent bits (R7) and what a double failure may have lost (R8), as the runtime has them
// carried out.

// intend makes bits durable.
func (n *Node) intend(id pair.LUNID, regions []uint32) {
	ok := true
	if e := n.md.tables.Load().units[id]; e != nil {
		if err := e.bits.Set(regions); err != nil {
			ok = false
			n.log.Error("write-intent bits", "lun", e.lun.UUID, "err", err)
		}
	}
	n.do(func(m *pair.Machine, now int64) { m.Intended(now, id, ok) })
}

// clearBits takes bits back: at once in memory, which is what orders it before every later intend,
// and on disk soon, so that a restart finds few. The caller holds n.mu.
func (n *Node) clearBits(x *pair.Action) {
	e := n.md.tables.Load().units[x.LUN]
	if e == nil {
		return
	}
	keep, ok := e.keeps(x.Keep)
	if !ok {
		return
	}
	e.bits.Clear(keep)
	n.run.tasks.Go(taskBits, func() {
		if err := e.bits.Flush(); err != nil && n.run.ctx.Err() == nil {
			n.log.Warn("write-intent bits", "lun", e.lun.UUID, "err", err) // the store has failed, or the LUN is gone
		}
	})
}

const markRetry = 100 * time.Millisecond

// markLost makes these LUNs report to every host that acknowledged writes may be lost. No host is
// served before.
func (n *Node) markLost(ids []pair.LUNID) {
	e := &meta.Entry{MarkLost: &meta.MarkLost{}}
	t := n.md.tables.Load()
	for _, id := range ids {
		if u := t.units[id]; u != nil {
			e.MarkLost.UUIDs = append(e.MarkLost.UUIDs, u.lun.UUID)
		}
	}
	for {
		_, err := n.propose(n.run.ctx, e)
		switch {
		case err == nil:
			n.log.Warn("acknowledged writes may be lost; LUNs answer MEDIUM ERROR until they are published again", "luns", e.MarkLost.UUIDs)
			n.do(func(m *pair.Machine, now int64) { m.LostMarked(now) })
			return
		case errors.Is(err, control.ErrUnavailable) || n.run.ctx.Err() != nil:
			return // no member any more; it is on record, and comes again
		}
		n.log.Error("cannot mark LUNs that may have lost writes; trying again", "err", err)
		select {
		case <-time.After(markRetry):
		case <-n.run.ctx.Done():
		}
	}
}
