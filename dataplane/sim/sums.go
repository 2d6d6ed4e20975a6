package sim

import (
	"encoding/binary"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Checksums of blocks (R15), as dataplane/store keeps them. A group of pages has one checksum, and
// its content represents the checksum. The newest checksums are in the memory of the process, which
// writes some of them out when it likes: a death loses the others, a power cut also what was not
// flushed.

// maxGroup is the largest group, in pages.
const maxGroup = 2

type sumKind uint8

const (
	sumOf      sumKind = iota // of v
	sumBad                    // the content is lost
	sumUnknown                // nothing is known of the content
)

type stored struct {
	kind sumKind
	v    [maxGroup]uint64
}

type checksum struct {
	mem, cache, stable stored
	kept               uint64 // the last flush that stable is of
	doubt              bool   // its region had a bit when this process started: whatever is there is taken
}

// content of a group as reads see it.
func (d *disk) content(object, g int) (c stored) {
	for i, p := range d.group(object, g) {
		c.v[i] = p.cache ^ p.flip
	}
	return c
}

func (d *disk) group(object, g int) []page {
	u := d.luns[object]
	return u[g*d.pages : min((g+1)*d.pages, len(u))]
}

// groups that a range touches.
func (d *disk) groups(off, n int64) (from, to int) {
	size := int64(d.pages) * blockSize
	return int(off / size), int((off + n + size - 1) / size)
}

// good reports whether a group matches its checksum. One in doubt does from now on.
func (d *disk) good(object, g int) bool {
	c := &d.sums[object][g]
	if is := d.content(object, g); c.doubt {
		c.mem, c.doubt = is, false
	} else if c.mem != is {
		return false
	}
	return true
}

// look names the blocks of a range that do not match.
func (d *disk) look(l pair.LUNID, off, n int64) (bad []scsi.Range) {
	d.beforeRead(l, off, n)
	if d.pages == 0 || !d.exists(l) {
		return nil
	}
	object, size := int(l[0])-1, int64(d.pages)*blockSize
	from, to := d.groups(off, n)
	for g := from; g < to; g++ {
		if !d.good(object, g) {
			length := int64(len(d.group(object, g))) * blockSize
			bad = append(bad, scsi.Range{Off: int64(g) * size, Len: length})
		}
	}
	return bad
}

// written keeps the checksums of a range that is about to be written; the function that it returns
// is called after that, with the pages that were. What was written in part on what did not match
// gets no checksum.
func (d *disk) written(l pair.LUNID, off, n int64) func(pages map[int]bool) {
	if d.pages == 0 || d.orphan || n == 0 {
		return func(map[int]bool) {}
	}
	object := int(l[0]) - 1
	from, to := d.groups(off, n)
	good := make([]bool, to-from)
	for i := range good {
		good[i] = d.good(object, from+i)
	}
	return func(pages map[int]bool) {
		list := make([]stored, len(good))
		for i := range good {
			whole := true
			for b := range d.group(object, from+i) {
				whole = whole && pages[(from+i)*d.pages+b]
			}
			if list[i] = d.content(object, from+i); !whole && !good[i] {
				list[i] = stored{kind: sumBad}
			}
		}
		sums := d.sums[object]
		for i := range list {
			d.coming[[2]int{object, from + i}] = list[i]
		}
		d.puts = append(d.puts, func() {
			for i := range list {
				sums[from+i].mem = list[i]
				delete(d.coming, [2]int{object, from + i})
			}
		})
	}
}

// putting are the checksums of what was written just now: they come after it.
func (d *disk) putting() func() {
	puts := d.puts
	d.puts = nil
	return func() {
		for _, put := range puts {
			put()
		}
	}
}

// setBad says of whole blocks that they are lost.
func (d *disk) setBad(l pair.LUNID, bad []scsi.Range) {
	if !d.exists(l) {
		return
	}
	for _, r := range bad {
		from, to := d.groups(r.Off, r.Len)
		for g := from; g < to; g++ {
			d.sums[l[0]-1][g].mem, d.sums[l[0]-1][g].doubt = stored{kind: sumBad}, false
		}
	}
}

// accept takes what has no known checksum as it is, and reports whether all matches then.
func (d *disk) accept(l pair.LUNID, blocks []scsi.Range) bool {
	all := true
	for _, r := range blocks {
		from, to := d.groups(r.Off, r.Len)
		for g := from; g < to; g++ {
			if c := &d.sums[l[0]-1][g]; c.mem.kind == sumUnknown {
				c.mem = d.content(int(l[0])-1, g)
			}
			all = d.good(int(l[0])-1, g) && all
		}
	}
	return all
}

// unknown reports whether blocks have lost their checksums only.
func (d *disk) unknown(l pair.LUNID, blocks []scsi.Range) bool {
	for _, r := range blocks {
		from, to := d.groups(r.Off, r.Len)
		for g := from; g < to; g++ {
			if d.sums[l[0]-1][g].mem.kind != sumUnknown {
				return false
			}
		}
	}
	return true
}

// forget is the end of the process: what it has not written out is lost.
func (d *disk) forget(lucky func() bool) {
	for _, list := range d.sums {
		for g := range list {
			c := &list[g]
			if c.mem != c.cache && lucky() {
				c.cache = c.mem
			}
			c.mem, c.doubt = c.cache, false
		}
	}
}

// cutSums is a power cut.
func (d *disk) cutSums(lucky func() bool) {
	for _, list := range d.sums {
		for g := range list {
			c := &list[g]
			if c.cache != c.stable && lucky() {
				c.stable = c.cache
			}
			c.mem, c.cache, c.doubt = c.stable, c.stable, false
		}
	}
}

// doubts the checksums of regions whose bit is set: a process begins.
func (d *disk) doubts(region int) {
	for l, bits := range d.bits {
		if d.pages == 0 {
			return
		}
		for g := range d.sums[l] {
			d.sums[l][g].doubt = bits.Has(g * d.pages / region)
		}
	}
}

// reset makes an object empty.
func (d *disk) reset(object int) {
	d.luns[object] = make([]page, len(d.luns[object])) // what still flushes the file from before does not flush this one
	d.misfit[object] = false
	if d.pages > 0 {
		d.sums[object] = make([]checksum, len(d.sums[object]))
	}
}

// planDamage has disks change blocks without a write, at either node, under load.
func (w *world) planDamage() {
	w.rotting(func() {
		if !w.shape.sums || w.onlyBusy() || w.chance(0.5) {
			return
		}
		for range 1 + w.rnd.IntN(8) {
			w.after(w.even(300*ms, w.shape.length), func() { w.rotting(func() { w.damage() }) })
		}
	})
}

// damage changes a block of a node while both are members and well, and the other copy of it is
// good. What is there then is another value, or that of another block, as after a write that was
// lost or went astray, or nothing.
func (w *world) damage() bool {
	if !w.shape.sums {
		return true
	}
	for _, x := range w.nodes {
		if x.m == nil || x.frozenNow() || x.phase != pair.Paired || x.excluding || x.disk.suspect() || x.sick || !x.m.Serving(x.clock()) {
			return false
		}
	}
	h := w.any()
	peer := w.nodes[h.id.Peer()]
	object := w.rnd.IntN(w.shape.luns + snapSlots)
	if h.disk.prepared(object) || peer.disk.prepared(object) {
		return false
	}
	g := w.rnd.IntN(len(h.disk.sums[object]))
	if !peer.disk.good(object, g) || !h.disk.good(object, g) {
		return false
	}
	return w.spoil(h, object, g)
}

// spoil has a disk change a block of a group.
func (w *world) spoil(h *host, object, g int) bool {
	u := h.disk.group(object, g)
	p := &u[w.rnd.IntN(len(u))]
	switch w.rnd.IntN(3) {
	case 0:
		p.flip = 1 << w.rnd.IntN(64)
	case 1:
		p.flip = p.cache // it reads as a hole
	default:
		list := h.disk.luns[w.rnd.IntN(w.shape.luns)]
		p.flip = p.cache ^ list[w.rnd.IntN(len(list))].cache
	}
	if p.flip == 0 {
		return false
	}
	w.flips, w.damagedAt = w.flips+1, w.now
	w.rots(object, g)
	w.mark(markDamage)
	w.trace("node %v: object %d group %d changes without a write", h.id, object+1, g)
	return true
}

// believe undoes what damage has led to, when the disks find their way back.
func (d *disk) believe() {
	for object, list := range d.sums {
		for g := range list {
			if c := &list[g]; c.mem.kind == sumBad {
				c.mem = d.content(object, g)
			}
		}
	}
}

// judge looks at blocks that do not match where nothing has damaged them: a rule of R15 is broken.
// A snapshot of what was in doubt has unknown checksums, and one that is not complete has checksums
// that were not written out.
func (h *host) judge(bad []scsi.Range, l pair.LUNID) {
	for _, r := range bad {
		g, _ := h.disk.groups(r.Off, r.Len)
		if w := h.w; w.flips == 0 && !h.disk.suspect() && !h.broken && h.disk.promised(int(l[0])-1) && h.disk.sums[l[0]-1][g].mem.kind != sumUnknown {
			w.fail("R15: node %v finds LUN %d at %d damaged, and nothing has damaged it", h.id, l[0], r.Off)
		}
	}
}

// vouched reports whether a page is known to be what was written.
func (d *disk) vouched(object, b int) bool { return d.pages == 0 || d.good(object, b/d.pages) }

// fetch is the partner's part of healing.
func (h *host) fetch(msg *pair.Msg) {
	link := h.linkN
	var data []byte
	var bad []scsi.Range
	done := h.forPeer(func(m *pair.Machine, res scsi.Result) {
		if h.judge(bad, msg.LUN); res == scsi.OK && len(bad) > 0 {
			res = scsi.Damaged // the bytes come all the same, and are not to be believed
		}
		m.Fetched(h.clock(), link, msg, data, res)
	})
	gone := false
	h.io(ioRead, 50*us, 2*ms, func(func() bool) {
		if gone = !h.disk.exists(msg.LUN); gone {
			return
		}
		bad = h.disk.look(msg.LUN, msg.Off, msg.Len)
		data, _ = h.disk.read(nil, msg.LUN, msg.Off, msg.Len)
	}, func(res scsi.Result) {
		if gone {
			res = scsi.Unavailable
		}
		done(res)
	})
}

// says reports whether content is what the checksums of its groups say.
func (d *disk) says(l pair.LUNID, off int64, data []byte) bool {
	object := int(l[0]) - 1
	from, to := d.groups(off, int64(len(data)))
	for g := from; g < to; g++ {
		c, want := &d.sums[object][g], stored{}
		for i := range d.group(object, g) {
			want.v[i] = binary.BigEndian.Uint64(data[8*(g*d.pages+i)-int(off/blockSize)*8:])
		}
		if c.doubt || c.mem != want {
			return false
		}
	}
	return true
}

// healBlock writes the partner's copy of a block.
func (h *host) healBlock(o *pair.Op) {
	m, life, data := h.m, h.life, o.Heal
	if o.Verify && !h.disk.says(o.LUN, o.HealAt, data) {
		h.w.mark(markOlderCopy)
		h.later(50*us, 2*ms, func(func() bool) {}, func() { m.StoreDone(h.clock(), o, scsi.Damaged) })
		return
	}
	if h.space() == scsi.NoSpace {
		h.later(10*us, ms, func(func() bool) {}, func() { m.StoreDone(h.clock(), o, scsi.NoSpace) })
		return
	}
	h.w.mark(markHealed)
	h.io(ioWrite, 10*us, ms, func(torn func() bool) {
		if h.life == life || torn != nil {
			h.disk.write(o.LUN, o.HealAt, data, false, torn)
		}
	}, func(res scsi.Result) { m.StoreDone(h.clock(), o, res) })
}

func (h *host) accept(o *pair.Op) {
	m, ok := h.m, false
	h.io(ioRead, 50*us, 2*ms, func(func() bool) { ok = h.disk.accept(o.LUN, o.Bad) }, func(res scsi.Result) {
		if res == scsi.OK && !ok {
			res = scsi.Damaged
		}
		m.StoreDone(h.clock(), o, res)
	})
}
