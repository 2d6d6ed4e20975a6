package sim

import "github.com/gemel-storage/gemel/target/pair"

// What a node owes its partner, and for how long already, by its own clock: no node takes longer for it than Dm and goes on as a
// member (R9, R12).

// owed is what a node has begun for its partner, and the entry that it waits for as the chair.
type owed struct {
	work     map[*pair.Msg]int64 // mirrored writes and flushes
	append   int64               // an entry is being applied since then
	asked    int64               // the partner was given an entry, which it has not answered
	index    int64               // of that one
	logHangs bool                // the next entry is not applied for long
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
	v := h.m.View(h.clock())
	if v.Phase != pair.Paired || v.Leaving {
		h.owed.asked = 0
		return
	}
	late := h.clock() - h.w.shape.mirrorMax - grace
	for msg, at := range h.owed.work {
		if at < late && msg.Epoch == v.Record.Epoch {
			h.w.fail("R12: node %v has not finished what its partner waits for within Dm, and is a member", h.id)
		}
	}
	if at := h.owed.append; at != 0 && at < late {
		h.w.fail("R12: node %v has not finished an entry of the log within Dm, and is a member", h.id)
	}
	if at := h.owed.asked; at != 0 && at < late && !v.Excluding && int64(v.LogIndex) < h.owed.index {
		h.w.fail("R9: node %v waits for its partner's answer to an entry for longer than Dm", h.id)
	}
}
