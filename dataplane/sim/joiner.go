package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// What a joiner does with what its source compares with it, and what it knows of objects that it
// needs whole (R14).

// compareSum is the joiner's half of a copy.
func (h *host) compareSum(msg *pair.Msg) {
	link := h.linkN
	need, bad, gone := false, []scsi.Range(nil), false
	done := h.forPeer(func(m *pair.Machine, res scsi.Result) {
		if gone {
			res = scsi.Unavailable
		}
		m.SumDone(h.clock(), link, msg, need, res)
	})
	if !h.disk.exists(msg.LUN) { // a snapshot whose entry this node has not applied yet
		h.later(us, 10*us, func(func() bool) {}, func() { done(scsi.Unavailable) })
		return
	}
	if len(msg.Meta) == 0 && msg.Flags&pair.FlagScrub == 0 { // a hole at the source
		h.io(ioWrite, 50*us, 2*ms, func(torn func() bool) {
			h.disk.write(msg.LUN, msg.Off, make([]byte, msg.Len), false, torn)
			h.compares(msg.LUN, msg.Off, msg.Len)
		}, done)
		return
	}
	h.io(ioRead, 50*us, 2*ms, func(func() bool) {
		if gone = !h.disk.exists(msg.LUN); gone {
			return
		}
		mine, hole := h.disk.read(nil, msg.LUN, msg.Off, msg.Len)
		bad = h.disk.look(msg.LUN, msg.Off, msg.Len)
		if msg.Flags&pair.FlagScrub != 0 && (string(sum(mine)) == string(msg.Meta) || hole && len(msg.Meta) == 0) && h.disk.unknown(msg.LUN, bad) {
			h.disk.accept(msg.LUN, bad) // the owner's has a checksum
			bad = nil
		}
		if need = len(bad) > 0 || string(sum(mine)) != string(msg.Meta) && !(hole && len(msg.Meta) == 0); !need {
			h.compares(msg.LUN, msg.Off, msg.Len)
		}
	}, func(res scsi.Result) {
		if msg.Flags&pair.FlagScrub != 0 && len(bad) > 0 && res == scsi.OK {
			h.judge(bad, msg.LUN)
			res = scsi.Damaged
		}
		done(res)
	})
}

// copiedTo notes that a resync has made everything durable here: an object is whole if all of it
// was compared since it was known to be incomplete. One whose entry was on its way when the source
// looked for the last time at what there is to copy is on no list of the source.
func (h *host) copiedTo() {
	for slot, s := range h.disk.meta.Snaps {
		if !h.disk.copying[slot] || h.compared[slot] == nil || slices.Contains(h.compared[slot], false) {
			continue
		}
		if h.disk.copying[slot] = false; s.Stage == stageMarked {
			h.whole[slot] = s.Born
		}
	}
}

// needs notes, durably, that an object is to be copied to.
func (h *host) needs(slot int) {
	h.disk.copying[slot], h.compared[slot] = true, make([]bool, h.w.shape.blocks)
}

// compares notes what a source has compared, or sent.
func (h *host) compares(l pair.LUNID, off, n int64) {
	slot := int(l[0]) - 1 - h.w.shape.luns
	if slot < 0 || h.compared[slot] == nil || !h.disk.exists(l) {
		return
	}
	for b := off / blockSize; b < (off+n)/blockSize; b++ {
		h.compared[slot][b] = true
	}
}
