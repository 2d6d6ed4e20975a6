package ledger

import (
	"fmt"
	"slices"
	"time"
)

// Moment is what is needed to judge a snapshot that was made between Ledger.Begin and End while
// writes continued: the state at Begin and every write since. A snapshot is right if there is one
// instant such that it holds exactly what was acknowledged before, of what was under way any part,
// and nothing of what was submitted later.
type Moment struct {
	volume  uint64
	workers int
	base    []uint64 // acknowledged at Begin, by block
	changes []change // in order of submission
}

type change struct {
	block            int
	seq              uint64
	submitted, acked time.Time // acked is zero while it is under way
}

// Begin starts to record; it is called before the snapshot is asked for.
func (l *Ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &Moment{volume: l.Volume, workers: l.Workers, base: make([]uint64, len(l.blocks))}
	for i, e := range l.blocks {
		m.base[i] = e.acked
		for _, p := range e.pending { // under way already: the snapshot may have it or not
			m.changes = append(m.changes, change{block: i, seq: p})
		}
	}
	l.moment = m
}

// End stops recording; it is called when the snapshot has been reported.
func (l *Ledger) End() *Moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.moment
	l.moment = nil
	return m
}

func (m *Moment) ack(block int, seq uint64) {
	for i := len(m.changes) - 1; i >= 0; i-- { // near the end: each worker has one write under way
		if c := &m.changes[i]; c.block == block && c.seq == seq {
			c.acked = time.Now()
			return
		}
	}
}

// Blocks is how many blocks the volume had.
func (m *Moment) Blocks() int { return len(m.base) }

// Changes is how many writes were recorded.
func (m *Moment) Changes() int { return len(m.changes) }

// Check judges the sequence numbers that the snapshot shows, by block; 0 for a block that holds no
// write.
func (m *Moment) Check(seen []uint64) error {
	if len(seen) != len(m.base) {
		return fmt.Errorf("the snapshot has %d blocks, not %d", len(seen), len(m.base))
	}
	// A worker writes in order, so what it had done at the instant is known from the latest of its
	// writes to be seen.
	last := make([]uint64, m.workers)
	for b, s := range seen {
		last[b%m.workers] = max(last[b%m.workers], s)
	}
	want := slices.Clone(m.base)
	var newest change                    // of those in the snapshot, the one submitted last
	var oldest = change{seq: ^uint64(0)} // of those not in it, the one acknowledged first
	for _, c := range m.changes {
		if c.seq <= last[c.block%m.workers] {
			want[c.block] = max(want[c.block], c.seq)
			if c.submitted.After(newest.submitted) {
				newest = c
			}
		} else if !c.acked.IsZero() && (oldest.acked.IsZero() || c.acked.Before(oldest.acked)) {
			oldest = c
		}
	}
	for b, s := range seen {
		if s != want[b] {
			return fmt.Errorf("block %d of the snapshot holds write %d, not %d, though later writes of its writer are in it", b, s, want[b])
		}
	}
	if !oldest.acked.IsZero() && oldest.acked.Before(newest.submitted) {
		return fmt.Errorf("the snapshot holds write %d of block %d, but not write %d of block %d, which had been acknowledged %v before it was submitted",
			newest.seq, newest.block, oldest.seq, oldest.block, newest.submitted.Sub(oldest.acked))
	}
	return nil
}
