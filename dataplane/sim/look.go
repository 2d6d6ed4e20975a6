package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// What ends the copy of a snapshot (R14): the chair, or the lone member, looks every so often at
// objects that are marked, asks its peer what the peer has, and proposes what follows. A proposer
// that dies changes nothing: the next look of either node, or of its next life, ends it.

const (
	lookMin  = 10 * ms
	lookMax  = 120 * ms
	lookLost = s // a question or a proposal that has led to nothing by then is made again
)

// lookAtCopies is made in each turn of the loop.
func (h *host) lookAtCopies() {
	w, now := h.w, h.w.now
	if h.disk.meta.idle() || now < h.lookAt {
		return
	}
	h.lookAt = now + w.between(lookMin, lookMax)
	v := h.m.View(h.clock())
	alone := v.Phase == pair.Alone
	if !v.Resync.Active {
		h.listed = nil
	}
	if !v.Serving || !alone && (v.Phase != pair.Paired || v.Record.Chair() != h.id) {
		return
	}
	for slot, s := range h.disk.meta.Snaps {
		if s.Stage != stageMarked || now < h.looking[slot] || h.unlisted(slot, s.Born) {
			continue
		}
		h.looking[slot] = now + lookLost
		switch own := h.holds(slot, s.Born); {
		case alone || own == heldVoid || own == heldFailed:
			h.concludes(slot, s, own, own)
		default:
			h.asksPeer(slot, s.Born, func(its held) {
				h.concludes(slot, s, own, its) // the slot may have another object by now, which the entry does not hit
			})
		}
	}
}

// lists is a list of a resync: the last one is what the joiner has when it is admitted.
func (h *host) lists() []pair.CopyObject {
	objs := h.objects()
	h.listed = map[pair.LUNID]bool{}
	for _, o := range objs {
		h.listed[o.ID] = true
	}
	return objs
}

// unlisted tells whether the source of a resync has marked an object after it has listed for the
// last time what there is to copy. The log may be barred until the joiner is a member. What is
// decided alone before that would be done after it, and the joiner need not have the object.
func (h *host) unlisted(slot int, born uint64) bool {
	return h.listed != nil && !h.listed[h.w.snapID(slot, born)]
}

// outcome is what follows from what both members have of an object. What a resync has made whole
// counts only beside the sealed copy of the other member: it is what the source had, and the source
// may have been restarted, or have given its copy up.
func outcome(own, its held) snapStep {
	switch {
	case own == heldUnknown || its == heldUnknown:
		return 0
	case own == heldVoid || own == heldFailed || its == heldVoid || its == heldFailed:
		return snapAbort
	case own == heldPart || its == heldPart:
		return 0
	case own == heldWhole && its == heldWhole:
		return snapAbort
	}
	return snapCommit
}

// idle tells that nothing is marked.
func (m *metaState) idle() bool {
	for _, s := range m.Snaps {
		if s.Stage == stageMarked {
			return false
		}
	}
	return true
}

func (h *host) concludes(slot int, s snap, own, its held) {
	step := outcome(own, its)
	if step == 0 {
		h.looking[slot] = 0
		return
	}
	h.looking[slot] = h.w.now + lookLost
	h.snapStep(s.LUN, slot, s.Born, step, func(res scsi.Result, _ uint64) {
		h.looking[slot] = 0
		switch {
		case res == scsi.OK && step == snapCommit:
			h.w.mark(markSnapshot)
		case res == scsi.OK:
			h.w.mark(markSnapVoid)
		}
	})
}

// asksPeer asks what the peer has of a marked object.
func (h *host) asksPeer(slot int, born uint64, done func(held)) {
	life := h.life
	late := func(do func()) {
		if h.w.now >= h.w.lateLooks {
			do()
			return
		}
		h.w.after(h.w.even(0, 200*ms), func() { h.when(life, do) })
	}
	late(func() {
		h.doesAtPeer(func(peer *host) any { return peer.holds(slot, born) }, func(answer any) {
			late(func() { done(answer.(held)) })
		})
	})
}

// doesAtPeer has the peer do something when the question arrives. Nothing comes back if the link
// breaks meanwhile: then the answer may be of another life of the peer.
func (h *host) doesAtPeer(do func(peer *host) any, done func(answer any)) {
	w, life, link, peer := h.w, h.life, h.w.net.n, h.w.nodes[h.id.Peer()]
	carry := func(from *host, arrive func()) {
		d := w.between(20*us, ms) + w.net.slow[from.id]
		w.after(d, func() {
			if w.net.up && w.net.n == link && !w.net.blocked(from.id, 0) {
				arrive()
			}
		})
	}
	carry(h, func() {
		peer.when(peer.life, func() {
			answer := do(peer)
			carry(peer, func() { h.when(life, func() { done(answer) }) })
		})
	})
}
