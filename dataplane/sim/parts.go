package sim

import "slices"

// When both nodes have lost power, writes that were not flushed may be gone; flushed ones never are
// (R8). The history of a block falls into parts, and each later one starts from any value that may
// have survived.

// part is a stretch of a block's history between losses. start is what it may begin with, nil: the
// very beginning.
type part struct {
	start *state
	recs  []rec
}

// parts cuts the attempts of a block at the losses. What was under way then may have happened
// before it; what began before it cannot happen after it, for both processes are gone.
func (h *history) parts(lun int, recs []rec) (out []part) {
	var losses []loss
	for _, x := range h.losses {
		if x.lun == lun {
			losses = append(losses, x)
		}
	}
	if len(losses) == 0 {
		return []part{{recs: recs}}
	}
	began := []uint64{0}
	var start *state
	from := int64(-1)
	for _, x := range append(losses, loss{at: forever}) {
		at := x.at
		p := part{start: start}
		for _, r := range recs {
			if r.call <= from || r.call > at {
				continue
			}
			if r.ret > at && at != forever {
				if r.kind == recRead || r.kind == recMiss {
					continue // its answer came after: another attempt gave it
				}
				r.ret, r.optional = at, true
			}
			p.recs = append(p.recs, r)
		}
		out = append(out, p)
		if x.forced {
			began = everWritten(recs, at)
		} else {
			began = h.survivors(lun, began, p.recs, from, at)
		}
		start = &state{began}
		from = at
	}
	return out
}

// everWritten is what a block may hold on a node that takes over by force: it may have been away
// for long.
func everWritten(recs []rec, at int64) []uint64 {
	out := []uint64{0}
	for _, r := range recs {
		if r.kind != recRead && r.kind != recMiss && r.call <= at {
			out = append(out, r.value)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// survivors are the values that a block may hold after a loss at the given moment: each that some
// write may have left there, unless a durable write certainly came after it. began is what the part
// began with, all older than it.
func (h *history) survivors(lun int, began []uint64, recs []rec, from, at int64) []uint64 {
	// The latest start among the durable writes: what returned before it is certainly superseded.
	durable := int64(-1)
	for _, r := range recs {
		if r.kind != recRead && r.kind != recMiss && !r.optional && (r.durable || h.flushedAfter(lun, r.ret, at)) {
			durable = max(durable, r.call)
		}
	}
	var out []uint64
	if durable < 0 {
		out = append(out, began...)
	}
	for _, r := range recs {
		if r.kind != recRead && r.kind != recMiss && r.ret >= durable {
			out = append(out, r.value)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// flushedAfter tells whether a flush that began after the given moment was answered before the
// loss.
func (h *history) flushedAfter(lun int, ret, at int64) bool {
	for _, f := range h.flushes {
		if f.lun == lun && f.call >= ret && f.ret <= at {
			return true
		}
	}
	return false
}

// lostAny tells whether writes of a LUN may be gone.
func (h *history) lostAny(lun int) bool {
	return slices.ContainsFunc(h.losses, func(x loss) bool { return x.lun == lun })
}
