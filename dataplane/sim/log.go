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
	raw     string
	joining bool
	early   bool // durable before it is shown
	res     scsi.Result
}

// appendEntry makes an entry durable, of which nothing is seen yet. One that makes or copies objects
// is left for later, as the runtime does.
func (h *host) appendEntry(index uint64, raw []byte, joining bool) {
	m := h.m
	x := &entryWork{index: index, raw: string(raw), joining: joining}
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
		h.showsSame(index, x.raw)
		m.Shown(h.clock(), index, x.res, binary.BigEndian.AppendUint64(nil, index), h.units())
	}
	switch {
	case x == nil || x.index != index || x.early && h.disk.next == nil:
		h.w.fail("R9: node %v shows entry %d, which is not durable there", h.id, index)
	case x.early:
		life := h.life
		h.w.after(h.w.between(10*us, 200*us), func() {
			h.when(life, func() {
				h.disk.settle()
				shown()
			})
		})
	default:
		h.entryTakes(func() { h.change(&h.disk.meta, x) }, shown)
	}
}

// showsSame claims R9: what a member has shown the pair does not continue without. A node that is out
// shows what it has made durable, and is copied to afterwards.
func (h *host) showsSame(index uint64, raw string) {
	w := h.w
	if h.phase != pair.Paired && h.phase != pair.Alone || h.disk.suspect() || w.parted > 0 {
		return
	}
	if was, has := w.shown[index]; has && was != raw {
		w.fail("R9: node %v shows at index %d %s, and a member has shown %s there", h.id, index, raw, was)
	}
	if w.shown == nil {
		w.shown = map[uint64]string{}
	}
	w.shown[index] = raw
}

// forgetShown is for the death of a node whose peer is no member that serves: what the peer has
// shown the node may not have had.
func (h *host) forgetShown() {
	if peer := h.w.nodes[h.id.Peer()]; peer.m == nil || peer.phase != pair.Paired && peer.phase != pair.Alone {
		clear(h.w.shown)
	}
}

// entryTakes is the work on an entry.
func (h *host) entryTakes(effect, done func()) {
	lo, hi := 200*us, 10*ms
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
			if !h.w.shape.sums {
				h.w.unflip()
			}
			u.Seq++
		}
	}
}
