package sim

import "github.com/gemel-storage/gemel/dataplane/pair"

// What a node owes its partner, and for how long already, by its own clock: no node takes longer
// for it than Dm and continues as a member, if its disk has stopped and the other one's has not
// (R9, R12). Slow is not failed: both disks must be known to be well or not for a part of Dm, over
// a link that carries questions and answers promptly, before it follows that one of them has to go.

// owed is what a node has begun for its partner, and the entry that it waits for as the chair.
type owed struct {
	work     map[*pair.Msg]int64 // mirrored writes and flushes
	append   int64               // an entry is being applied since then
	asked    int64               // the partner was given an entry, which it has not answered
	index    int64               // of that one
	logHangs bool                // the next entry is not applied for long
	moved    int64               // the disk finished something
	unclear  int64               // the link was not well, or a disk other than this node's
	unsure   int64               // the same, of this node's disk
	excluded uint64              // so often this node has excluded its partner for slowness
}

// grace is what a turn of the loop may add.
const grace = 60 * ms

// owes notes work for the partner; the function that it returns ends it.
func (h *host) owes(msg *pair.Msg) (done func()) {
	if h.owed.work == nil {
		h.owed.work = map[*pair.Msg]int64{}
	}
	h.owed.work[msg] = h.clock()
	return func() { delete(h.owed.work, msg) }
}

// asks notes an entry as it is given to the partner.
func (h *host) asks(msg *pair.Msg) {
	if h.owed.asked == 0 || h.owed.index != msg.Aux {
		h.owed.asked, h.owed.index = h.clock(), msg.Aux
	}
}

// checkOwed is made after each turn of the loop.
func (h *host) checkOwed() {
	now, dm := h.clock(), h.w.shape.mirrorMax
	peer, net := h.w.nodes[h.id.Peer()], &h.w.net
	if h.troubled() {
		h.owed.unsure = now + h.slow // what has begun is still that slow
	}
	if peer.m == nil || peer.phase != pair.Paired || peer.excluding || peer.frozenNow() || peer.troubled() || !net.up || net.cut != [2]bool{} || net.stuck != [2]bool{} || net.slow != [2]int64{} {
		h.owed.unclear = max(h.owed.unclear, now+peer.slow+net.slow[0]+net.slow[1])
	}
	h.checkExcludes(now, peer)
	v := h.m.View(now)
	if v.Phase != pair.Paired || v.Leaving || !v.Agreed {
		h.owed.asked, h.owed.unclear = 0, max(h.owed.unclear, now)
		return
	}
	// After Dm the disks are asked, which takes a tenth of it if they answer promptly, and they
	// have to do so until this one would have written out what its page cache had.
	late, clear := now-3*dm/2-backlogMax-grace, now-dm/2-backlogMax-grace
	peerWell := h.owed.unclear < clear
	for msg, at := range h.owed.work {
		if at < late && h.owed.moved < late && peerWell && msg.Epoch == v.Record.Epoch {
			h.w.fail("R12: node %v has not finished what its partner waits for within Dm, its disk has stopped and the partner's is well, and it is a member", h.id)
		}
	}
	if at := h.owed.append; at != 0 && at < late && peerWell {
		h.w.fail("R12: node %v has not finished an entry of the log within Dm, the partner's disk is well, and it is a member", h.id)
	}
	if at := h.owed.asked; at != 0 && at < late && !v.Excluding && h.owed.unsure < clear && int64(v.LogIndex) < h.owed.index {
		h.w.fail("R9: node %v waits for its partner's answer to an entry for longer than Dm", h.id)
	}
}

// checkExcludes judges a node that excludes its partner for slowness: the partner has something to
// finish, or its disk was not well. What it has passed over it never answers, and no exclusion is
// needed for that.
func (h *host) checkExcludes(now int64, peer *host) {
	n := h.m.Stats.SlowExcludes
	if n == h.owed.excluded {
		return
	}
	h.owed.excluded = n
	if h.owed.unclear < now-h.w.shape.mirrorMax && len(peer.owed.work) == 0 && peer.owed.append == 0 {
		h.w.fail("R12: node %v excludes its partner for slowness, and the partner has nothing to finish", h.id)
	}
}

// troubled reports a disk that may not answer a probe promptly.
func (h *host) troubled() bool {
	return h.slow > 0 || h.stopped > h.w.now || h.load.perBlock > 0 || h.load.dirty > 0
}
