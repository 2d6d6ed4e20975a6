package sim

import (
	"encoding/binary"
	"encoding/json"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// entryWork is the entry of the log that a node is at work on.
type entryWork struct {
	entry
	index   uint64
	joining bool
	early   bool // durable before it is shown
	res     scsi.Result
}

// appendEntry makes an entry durable, of which nothing is seen yet. One that makes or copies
// objects is left for later, as the runtime does.
func (h *host) appendEntry(index uint64, raw []byte, joining bool) {
	m := h.m
	x := &entryWork{index: index, joining: joining}
	h.entry = x
	if err := json.Unmarshal(raw, &x.entry); err != nil {
		h.w.fail("log entry: %v", err)
		return
	}
	if x.early = x.Group == 0 && x.Snap == 0; !x.early {
		life := h.life
		h.w.after(0, func() { h.when(life, func() { m.Appended(h.clock(), index) }) })
		return
	}
	h.entryTakes(func() {
		next := h.disk.meta.clone()
		h.disk.next = &next
		h.change(&next, x)
	}, func() { m.Appended(h.clock(), index) })
}

// showEntry lets it be seen.
func (h *host) showEntry(index uint64) {
	m, x := h.m, h.entry
	shown := func() {
		h.entry = nil
		h.peerHas(index)
		m.Shown(h.clock(), index, x.res, binary.BigEndian.AppendUint64(nil, index), h.units())
	}
	switch {
	case x == nil || x.index != index || x.early && h.disk.next == nil:
		h.w.fail("R9: node %v shows entry %d, which is not durable there", h.id, index)
	case x.early:
		life := h.life
		h.w.after(h.w.between(10*us, 200*us), func() {
			h.when(life, func() {
				if !h.w.shape.sums {
					h.w.unflip() // the owner may be another one now
				}
				h.disk.settle()
				shown()
			})
		})
	default:
		h.entryTakes(func() { h.change(&h.disk.meta, x) }, shown)
	}
}

// peerHas claims R9: of two members the chair shows an entry only if its peer has it durably, for
// the pair may have to continue with what the peer has.
func (h *host) peerHas(index uint64) {
	r, peer := &h.w.arb.rec, h.w.nodes[h.id.Peer()]
	if r.Both() && r.Epoch == h.epoch && r.Chair() == h.id && h.phase == pair.Paired && h.serves() && peer.serves() && peer.disk.meta.Index < index && h.w.parted == 0 && !peer.disk.suspect() {
		h.w.fail("R9: node %v, the chair, shows entry %d, and its peer has %d", h.id, index, peer.disk.meta.Index)
	}
}

// serves reports a member, by the record as it is and as the node has it.
func (h *host) serves() bool {
	r := &h.w.arb.rec
	m := r.Member(h.id)
	return h.m != nil && (h.phase == pair.Paired || h.phase == pair.Alone) && h.w.arb.exists && m != nil && m.Incarnation == h.disk.previous
}

// entryTakes is the work on an entry.
func (h *host) entryTakes(effect, done func()) {
	lo, hi := h.takes(200*us, 10*ms)
	if h.owed.logHangs {
		h.owed.logHangs = false
		lo, hi = 2*h.w.shape.mirrorMax, 2*h.w.shape.mirrorMax
	}
	h.owed.append = h.clock()
	h.later(lo, hi, func(func() bool) { effect() }, func() {
		h.owed.append = 0
		done()
	})
}

// settle takes an entry that is durable and was not shown for what it is: the process has shown it,
// or is a new one.
func (d *disk) settle() {
	if d.next != nil {
		d.meta, d.next = *d.next, nil
	}
}

// change applies an entry to metadata.
func (h *host) change(meta *metaState, x *entryWork) {
	e := &x.entry
	if x.index != meta.Index+1 {
		h.w.fail("R9: node %v applies index %d after %d", h.id, x.index, meta.Index)
	}
	meta.Index = x.index
	switch {
	case len(e.Lost) > 0:
		for _, l := range e.Lost {
			meta.Lost[l] = ^uint64(0)
		}
	case e.Group > 0:
		x.res = h.applyGroup(e, x.joining)
	case e.Snap > 0:
		x.res = h.applySnap(e, x.index, x.joining)
	case e.Note != 0:
	case e.Publish != 0:
		meta.Lost[e.LUN] &^= e.Publish
	default:
		h.changeOwner(meta, e)
	}
}

func (h *host) changeOwner(meta *metaState, e *entry) {
	for i := range meta.Units {
		if u := &meta.Units[i]; (e.All || i == e.LUN) && u.Owner != e.To {
			u.Owner = e.To
			u.Seq++
		}
	}
}
