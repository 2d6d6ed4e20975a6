package sim

import (
	"encoding/binary"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// history is what hosts saw, per block, and what was made durable.
type history struct {
	values  uint64
	seen    [][]uint64 // the value that some host read or wrote last: what COMPARE AND WRITE expects
	blocks  [][][]rec
	flushes []flushed
	losses  []loss
}

// rec is one attempt at one block.
type rec struct {
	client    int
	kind      recKind
	optional  bool // it was given up: it may have taken effect or not
	durable   bool // a status said that it is on stable storage
	verify    uint64
	value     uint64
	call, ret int64
	one       state // the state after it, when that is certain
	own       [1]uint64
}

// changes tells whether it may have written its value.
func (r *rec) changes() bool { return r.kind == recWrite || r.kind == recSwap }

type recKind uint8

const (
	recRead recKind = iota
	recWrite
	recSwap // COMPARE AND WRITE that swapped
	recMiss // COMPARE AND WRITE that found something else
)

// flushed is a SYNCHRONIZE CACHE that was answered.
type flushed struct {
	lun       int
	call, ret int64
}

func (h *history) init(luns, blocks int) {
	h.seen, h.blocks = make([][]uint64, luns), make([][][]rec, luns)
	for i := range luns {
		h.seen[i], h.blocks[i] = make([]uint64, blocks), make([][]rec, blocks)
	}
}

// fresh is a value that no host has written yet.
func (h *history) fresh() uint64 { h.values++; return h.values }

// loss is the moment from which hosts of a LUN get the error that writes may be lost.
type loss struct {
	lun    int
	at     int64
	forced bool // of another generation: what was flushed may be gone too
}

func (h *history) lost(lun int, now int64, forced bool) {
	h.losses = append(h.losses, loss{lun, now, forced})
}

// forever is when an operation returned that never did.
const forever = int64(1) << 62

// add records a finished logical operation. Each attempt of a write may have taken effect once, at
// any time from its start until the operation returned: a host's own retry is at-least-once (R11d).
// The last one did what was answered.
func (h *history) add(client int, l *logical, res scsi.Result, got []byte, end int64) {
	last := l.tries[len(l.tries)-1]
	switch l.kind {
	case opFlush:
		h.flushes = append(h.flushes, flushed{l.lun, last.start, end})
		return
	case opRead:
		for i := range l.n {
			v := binary.BigEndian.Uint64(got[i*blockSize:])
			h.seen[l.lun][l.block+i] = v
			h.put(l, i, rec{client: client, kind: recRead, value: v, call: last.start, ret: end})
		}
		return
	}
	h.tries(client, l, len(l.tries)-1, end)
	for i := range l.n {
		r := rec{client: client, kind: recWrite, durable: l.fua, value: l.value, verify: l.verify, call: last.start, ret: end}
		switch {
		case l.kind == opSwap && res == scsi.Miscompare:
			r.kind, r.durable = recMiss, false
		case l.kind == opSwap:
			r.kind = recSwap
		}
		if r.kind != recMiss {
			h.seen[l.lun][l.block+i] = l.value
		}
		h.put(l, i, r)
	}
}

// tries records the first n attempts of a write as ones that may have happened.
func (h *history) tries(client int, l *logical, n int, end int64) {
	kind := recWrite
	if l.kind == opSwap {
		kind = recSwap
	}
	for _, t := range l.tries[:n] {
		if t.none {
			continue
		}
		for i := range l.n {
			h.put(l, i, rec{client: client, kind: kind, optional: true, value: l.value, verify: l.verify, call: t.start, ret: end})
		}
	}
}

// open records what a host still waits for when the history ends.
func (h *history) open(c *client) {
	if c.op != nil && c.op.kind.writes() {
		h.tries(c.id, c.op, len(c.op.tries), forever)
	}
}

func (h *history) put(l *logical, i int, r rec) {
	b := &h.blocks[l.lun][l.block+i]
	*b = append(*b, r)
}
