package pair

import (
	"fmt"
	"time"
)

// A lone member has no lease: it needs no consent of a peer to serve. So it looks at the record now
// and then, for the record may have been given to another node over its head (R2): by an
// administrator's force, or by the other node itself, after the arbiter was restored to an earlier
// record.

// watch reads the record again when that is due. It shares the one conversation with the arbiter: a
// read beside a write of our own could show the record from before that write, and have this node
// fence itself for nothing.
func (m *Machine) watch(now int64) {
	if now < m.watchAt || m.resync.stage == rsAdmit { // admit asks the arbiter itself, and until the answer this node serves for a part of a lease only
		return
	}
	m.watchAt = now + int64(m.cfg.RecordEvery)
	m.get(now)
}

// replaces is how long a node that has taken the record over the head of one that may be alone
// waits before it serves: by then that one has looked at the record and fenced itself, if the
// arbiter answers it.
func (m *Machine) replaces() time.Duration {
	d := m.cfg.RecordEvery + m.cfg.ArbiterMax
	return d + d/50 + m.cfg.Margin
}

// unconfirmed is the reason of a lone member between the end of its wait and the arbiter's answer.
const unconfirmed = "waiting until the arbiter confirms this node's record: check that the arbiter answers"

// holds ends the wait of a node that has replaced another. The record has to be this node's at the
// end of the wait as well: an arbiter that was set back meanwhile has shown the replaced node its
// own record, and that node continues.
func (m *Machine) holds(now int64) {
	if m.holdTill != 0 && now >= m.holdTill {
		m.holdTill = 0
		m.unsure = m.arb.calls + 1
		m.watchAt = min(m.watchAt, now)
		m.reason = unconfirmed
	}
}

// taken tells why a younger record ends the service of a lone member. It follows from ours only if
// it names this process, or if we have asked for {a,b} and do not know what became of that: then
// the other node may have been a member, and may have excluded us. In a new generation, or without
// our request, an administrator or the other node has decided, and what hosts have written here
// since is on this store only. That is never given up silently: this node does not join as long as
// this process lives.
func (m *Machine) taken(rec *Record) string {
	if m.phase != Alone || rec.Epoch <= m.rec.Epoch {
		return ""
	}
	me := rec.Member(m.cfg.Self)
	if me != nil && me.Incarnation == m.cfg.Incarnation && me.Store == m.cfg.Store || m.resync.asked && rec.Generation == m.rec.Generation {
		return ""
	}
	return fmt.Sprintf("this node was the only member, and the record of epoch %d names node %s: node %s was forced, or the record was rolled back. Writes that hosts made since are on this node's store only: save the store, or stop node %s and force this node. If this node is restarted, the data of node %s replaces its data",
		rec.Epoch, rec.Chair(), rec.Chair(), rec.Chair(), rec.Chair())
}
