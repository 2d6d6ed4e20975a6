package ledger

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Ledger records the writes to one volume. The blocks are dealt out to Workers in turn (block
// modulo Workers), each of which has one write in flight, so the writes to a block, and all writes
// of a worker, are in order. Sequence numbers are a worker's own, from 1. Methods are safe for
// concurrent use.
type Ledger struct {
	Volume  uint64
	Workers int

	mu      sync.Mutex
	blocks  []entry
	acked   int64 // writes
	written int   // blocks that have an acknowledged write
	moment  *Moment
}

type entry struct {
	acked   uint64   // sequence of the last acknowledged write; 0: none
	pending []uint64 // submitted after it and not acknowledged
}

// New is a ledger of a volume with so many blocks.
func New(volume uint64, workers, blocks int) *Ledger {
	return &Ledger{Volume: volume, Workers: workers, blocks: make([]entry, blocks)}
}

// Grow adds blocks.
func (l *Ledger) Grow(blocks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = append(l.blocks, make([]entry, blocks)...)
}

// Len is the number of blocks.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.blocks)
}

// Written is the number of blocks that have an acknowledged write.
func (l *Ledger) Written() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

// Acked is the number of acknowledged writes.
func (l *Ledger) Acked() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

// Submit records a write before it is sent.
func (l *Ledger) Submit(block int, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.blocks[block]
	e.pending = append(e.pending, seq)
	if l.moment != nil {
		l.moment.changes = append(l.moment.changes, change{block: block, seq: seq, submitted: time.Now()})
	}
}

// Ack records that a write was acknowledged. What was submitted before it cannot appear any more.
func (l *Ledger) Ack(block int, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.blocks[block]
	if e.acked == 0 {
		l.written++
	}
	e.acked, e.pending = seq, slices.DeleteFunc(e.pending, func(p uint64) bool { return p <= seq })
	l.acked++
	if l.moment != nil {
		l.moment.ack(block, seq)
	}
}

// Check says whether a block may have this content: "" if so, else what is wrong with it. A block
// without an acknowledged write may have any.
func (l *Ledger) Check(block int, content []byte) string {
	l.mu.Lock()
	e := l.blocks[block]
	pending := slices.Clone(e.pending)
	l.mu.Unlock()
	if e.acked == 0 {
		return ""
	}
	seq, fault := Parse(content, l.Volume, uint64(block))
	switch {
	case fault != "":
		return fmt.Sprintf("%s, want write %d", fault, e.acked)
	case seq == e.acked || slices.Contains(pending, seq):
		return ""
	case seq < e.acked:
		return fmt.Sprintf("stale: write %d, want %d", seq, e.acked)
	}
	return fmt.Sprintf("write %d, which was never submitted, want %d", seq, e.acked)
}
