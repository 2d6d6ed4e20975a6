package sim

import (
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// ioKind is a set of disk operations.
type ioKind uint8

const (
	ioWrite ioKind = 1 << iota
	ioFlush
	ioRead
)

func duration(ns int64) time.Duration { return time.Duration(ns) }

// later is a disk operation: it ends after a while. If the process dies first it may have happened,
// in part.
func (h *host) later(lo, hi int64, effect func(torn func() bool), done func()) {
	w, life, boots, disk := h.w, h.life, h.boots, h.disk
	w.after(w.between(lo, hi)+h.lag(), func() {
		if h.life != life {
			// Not once another process has the store: it opens it when nothing of the former one is
			// left.
			if h.boots == boots && h.m == nil && h.life == life+1 && h.disk == disk && w.chance(0.5) {
				w.mark(markTorn)
				disk.orphan = true
				effect(func() bool { return w.chance(0.5) })
				disk.orphan = false
			}
			return
		}
		effect(nil) // the kernel works on while the process is stopped
		put := disk.putting()
		ended := func() {
			put()
			done()
		}
		h.owed.moved = h.clock()
		if w.shape.group == 1 {
			h.when(life, ended)
			return
		}
		var d int64
		w.rotting(func() { d = w.between(0, 100*us) })
		w.after(d, func() { h.when(life, ended) })
	})
}

// lag is what a slow disk adds: not the same to all, so that what began later may end first.
func (h *host) lag() int64 {
	if wait := h.stopped - h.w.now; wait > 0 {
		return wait
	}
	if h.slow == 0 || h.slow > h.w.shape.mirrorMax || h.w.chance(0.3) {
		return h.slow
	}
	return h.w.even(0, h.slow)
}

// refuses decides whether the disk fails an operation. A store that has failed once in this life
// takes nothing more, as the runtime's; one that cannot read may do the rest.
func (h *host) refuses(k ioKind) bool {
	if h.broken && k != ioRead || h.errors&k != 0 && h.w.chance(0.7) {
		h.sick = true
		return true
	}
	return false
}

// io is an operation that the disk may refuse; res is then the result. A refused write may have
// changed some of its blocks; after a refused flush it is unknown.
func (h *host) io(k ioKind, lo, hi int64, effect func(torn func() bool), done func(res scsi.Result)) {
	switch {
	case !h.refuses(k):
		h.later(lo, hi, effect, func() { done(scsi.OK) })
	case k == ioRead:
		h.w.mark(markReadError)
		h.later(lo, hi, func(func() bool) {}, func() { done(scsi.ReadError) })
	default:
		h.breaks(k, lo, hi, effect, done)
	}
}

// breaks is a write or flush that fails, and the store with it (R12).
func (h *host) breaks(k ioKind, lo, hi int64, effect func(torn func() bool), done func(res scsi.Result)) {
	w := h.w
	h.later(lo, hi, func(func() bool) {
		h.broken, h.disk.untrusted, h.harmed = true, true, w.now
		if k == ioWrite {
			w.mark(markWriteError)
			effect(func() bool { return w.chance(0.5) })
			return
		}
		w.mark(markFlushError)
		for _, l := range h.objectIDs() {
			h.disk.flushFails(l)
		}
	}, func() {
		w.trace("node %v: the store fails", h.id)
		life := h.life
		w.after(w.between(10*us, 500*us), func() {
			h.when(life, func() {
				h.failed = true
				h.m.StoreFailed(h.clock(), "the disk refused a write or a flush")
			})
		})
		done(scsi.WriteError)
	})
}

// flushing is a sync. What is written while it is under way may or may not be in it: the least is
// what was there before.
func (h *host) flushing(luns []pair.LUNID, sums bool, done func(res scsi.Result)) {
	none := func(func() bool) {}
	if h.refuses(ioFlush) {
		h.breaks(ioFlush, 300*us, 20*ms, none, done)
		return
	}
	var ends []func()
	for _, l := range luns {
		ends = append(ends, h.disk.flush(l, sums))
	}
	durable := func(func() bool) {
		for _, end := range ends {
			end()
		}
	}
	h.whenDrained(func() { h.later(300*us, 20*ms, durable, func() { done(scsi.OK) }) })
}

// read begins at once, or, where the disk has much to do, when the requests before it are done,
// which may be later than Dm.
func (h *host) read(o *pair.Op) {
	w, m, life := h.w, h.m, h.life
	begin := func() {
		m.StoreBegins(h.clock(), o)
		h.io(ioRead, 10*us, 500*us, func(func() bool) {
			b, _ := h.disk.read(nil, o.LUN, o.Cmd.Off, o.Cmd.Len)
			copy(o.Cmd.Data, b)
			if h.life != life {
				return
			}
			o.Bad = h.disk.look(o.LUN, o.Cmd.Off, o.Cmd.Len)
		}, func(res scsi.Result) { m.StoreDone(h.clock(), o, h.found(o, res)) })
	}
	if h.slow == 0 || w.chance(0.7) {
		begin()
		return
	}
	wait := w.between(us, 3*w.shape.mirrorMax/2)
	if wait > w.shape.mirrorMax {
		w.mark(markReadWaited)
	}
	w.after(wait, func() { h.when(life, begin) })
}

// cells are a write's blocks and bytes, whatever its kind.
func cells(k scsi.OpKind, off, length int64, data []byte, ranges []scsi.Range) []scsi.Op {
	switch k {
	case scsi.OpUnmap:
		var out []scsi.Op
		for _, r := range ranges {
			out = append(out, scsi.Op{Off: r.Off, Data: make([]byte, r.Len)})
		}
		return out
	case scsi.OpWriteSame:
		var all []byte
		for range length / int64(len(data)) {
			all = append(all, data...)
		}
		return []scsi.Op{{Off: off, Data: all}}
	}
	return []scsi.Op{{Off: off, Data: data}}
}

// put writes what cells gave.
func (h *host) put(l pair.LUNID, cs []scsi.Op, durable bool, torn func() bool) {
	for i := range cs {
		h.disk.write(l, cs[i].Off, cs[i].Data, durable, torn)
	}
}

func (h *host) write(o *pair.Op, durable bool) {
	m := h.m
	lo, hi := 10*us, ms
	if durable {
		lo, hi = 200*us, 15*ms
	}
	// The bytes are read when the write happens: until StoreDone the buffer is the store's.
	effect := func(torn func() bool) {
		s := o.Cmd
		h.put(o.LUN, cells(s.Kind, s.Off, s.Len, s.Data, s.Ranges), durable, torn)
	}
	if life := h.life; true {
		whole := effect
		effect = func(torn func() bool) {
			if h.life == life {
				whole(torn)
			}
		}
	}
	if o.Cmd.Kind != scsi.OpUnmap && h.space() == scsi.NoSpace {
		h.noSpace(lo, hi, o.Cmd.Len, effect, func(res scsi.Result) { m.StoreDone(h.clock(), o, res) })
		return
	}
	h.whenRoom(o.Cmd.Len, durable, func() {
		h.io(ioWrite, lo, hi, effect, func(res scsi.Result) { m.StoreDone(h.clock(), o, res) })
	})
}

// noSpace is a write that finds no space. It may have changed the beginning of its range before it
// knew.
func (h *host) noSpace(lo, hi, length int64, effect func(torn func() bool), done func(scsi.Result)) {
	h.later(lo, hi, func(func() bool) {
		left := h.w.rnd.Int64N(length / blockSize)
		effect(func() bool { left--; return left >= 0 })
	}, func() { done(scsi.NoSpace) })
}

func (h *host) space() scsi.Result {
	if h.full && h.w.chance(0.5) {
		h.w.unflip() // the repair of what is refused leaves out what is damaged, so the copies differ from here on
		return scsi.NoSpace
	}
	return scsi.OK
}

// apply is a mirrored write, or a copied range. Its buffer goes back to the pool before the machine
// hears of the end.
func (h *host) apply(msg *pair.Msg, durable bool) {
	link := h.linkN
	over := func() {}
	if msg.Type == pair.MsgMirror {
		over = h.owes(msg)
	}
	done := h.forPeer(func(m *pair.Machine, res scsi.Result) {
		over()
		scribble(msg.Data)
		msg.Data = nil
		m.Applied(h.clock(), link, msg, res)
	})
	cs := cells(msg.Kind, msg.Off, msg.Len, msg.Data, nil)
	var bad []scsi.Range
	if msg.Type == pair.MsgCopyData || msg.Flags&pair.FlagRepair != 0 {
		var err error
		if cs, bad, err = around(msg); err != nil {
			h.w.fail("damaged ranges of a copy: %v", err)
			return
		}
	}
	if msg.Kind == scsi.OpUnmap {
		rs, err := msg.DecodeRanges()
		if err != nil {
			h.w.fail("ranges of a mirrored UNMAP: %v", err)
			return
		}
		cs = cells(msg.Kind, 0, 0, nil, rs)
	}
	effect := func(torn func() bool) {
		h.put(msg.LUN, cs, durable, torn)
		if msg.Type == pair.MsgCopyData && !h.disk.orphan {
			h.compares(msg.LUN, msg.Off, msg.Len)
			if len(bad) > 0 {
				h.w.mark(markCopiedBad)
				h.givenUp(msg.LUN, bad)
			}
			h.disk.setBad(msg.LUN, bad)
		}
	}
	if msg.Type == pair.MsgMirror && msg.Flags&pair.FlagRepair == 0 && msg.Kind != scsi.OpUnmap && h.space() == scsi.NoSpace {
		if w := h.w; w.atRefusal != nil && msg.FrontN != 0 && msg.Len > blockSize {
			w.atRefusal(h)
			w.atRefusal = nil
		}
		h.noSpace(10*us, ms, msg.Len, effect, done)
		return
	}
	h.whenRoom(msg.Len, durable, func() { h.io(ioWrite, 10*us, ms, effect, done) })
}

// around are the parts of a copied range that the source has not lost.
func around(msg *pair.Msg) (cs []scsi.Op, bad []scsi.Range, err error) {
	if bad, err = msg.DecodeRanges(); err != nil {
		return nil, nil, err
	}
	at := msg.Off
	for _, r := range append(bad, scsi.Range{Off: msg.Off + msg.Len}) {
		if r.Off > at {
			cs = append(cs, scsi.Op{Off: at, Data: msg.Data[at-msg.Off : r.Off-msg.Off]})
		}
		at = r.Off + r.Len
	}
	return cs, bad, nil
}

// found is the result of a read, with what does not match its checksums.
func (h *host) found(o *pair.Op, res scsi.Result) scsi.Result {
	if h.judge(o.Bad, o.LUN); res == scsi.OK && len(o.Bad) > 0 {
		return scsi.Damaged
	}
	return res
}

// forPeer counts store work that has to end before the next link begins (R4).
func (h *host) forPeer(done func(m *pair.Machine, res scsi.Result)) func(scsi.Result) {
	m := h.m
	h.applies++
	return func(res scsi.Result) {
		h.applies--
		done(m, res)
	}
}

func (h *host) compare(o *pair.Op) {
	m, life := h.m, h.life
	same := false
	h.io(ioRead, 10*us, 500*us, func(func() bool) {
		b, _ := h.disk.read(nil, o.LUN, o.Cmd.Off, o.Cmd.Len)
		if h.life != life {
			return
		}
		same = string(b) == string(o.Cmd.Verify)
		o.Bad = h.disk.look(o.LUN, o.Cmd.Off, o.Cmd.Len)
	}, func(res scsi.Result) {
		if res = h.found(o, res); res == scsi.OK && !same {
			res = scsi.Miscompare
		}
		m.StoreDone(h.clock(), o, res)
	})
}

// readBack is what repairs and resync copies read.
func (h *host) readBack(o *pair.Op, repair bool) {
	m, life := h.m, h.life
	hi := 2 * ms
	if repair {
		hi = ms
	}
	gone := false
	h.io(ioRead, 50*us, hi, func(func() bool) {
		if gone = !h.disk.exists(o.LUN); gone || h.life != life {
			return
		}
		if repair { // a block that was damaged since the refusal would be left out, see space
			h.w.unflip()
		}
		off, n := o.Range()
		var hole bool
		o.Buf, hole = h.disk.read(make([]byte, 0, n), o.LUN, off, n)
		o.Bad = h.disk.look(o.LUN, off, n)
		if h.judge(o.Bad, o.LUN); repair {
			return
		}
		h.w.looksAt(o.LUN, off)
		hole = hole && len(o.Bad) == 0
		o.Sum, o.Hole = nil, hole
		if !hole {
			o.Sum = sum(o.Buf)
		}
	}, func(res scsi.Result) {
		if gone {
			res = scsi.Unavailable
		}
		m.StoreDone(h.clock(), o, res)
	})
}
