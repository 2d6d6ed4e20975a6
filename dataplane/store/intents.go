package store

import (
	"fmt"
	"math/bits"
	"os"
	"sync"
)

// Intents is the durable write-intent bitmap of one LUN on this node (R7): a region's bit is on
// stable storage before this node first applies a write to it, and it is cleared at a checkpoint,
// when both nodes are known to hold the same there durably. After a crash the set bits are where
// the two copies may differ. All methods are safe for concurrent use. Open one Intents per LUN.
//
// There are two bitmaps in memory. set is what the callers want: the union of all Set minus Clear.
// durable is what is on disk for certain, however a write that is under way ends. One write per
// block is under way at a time, and it writes the block's part of set as it was when the write
// began, so
//
//   - while it runs, durable is cut down to what old and new content have in common (a torn block
//     does not decode and counts as all dirty, so it takes nothing away either);
//   - when it has returned, durable is what was written.
//
// Set returns when its bits are in both maps at one moment. So a Set after a Clear of the same
// region is free while the old bit is still on disk and no write that would remove it is under way,
// and otherwise waits for a write of its own; the next write of the block, no matter who asks for
// it, has the bit because set has it. A cleared bit that is still set on disk only costs a needless
// comparison after a crash.
type Intents struct {
	s     *Store
	f     *os.File // O_DSYNC: a write that has returned is durable
	path  string   // relative to the store's directory
	owner intentOwner

	mu         sync.Mutex
	regions    int64
	set        []uint64
	durable    []uint64
	writes     map[int]*intentWrite // by block
	unreadable int
	closed     bool
	count      uint64 // block writes begun since OpenIntents
}

// intentWrite is one write of one block. done is closed when it has ended and the maps are up to
// date.
type intentWrite struct{ done chan struct{} }

var intentBuffers = sync.Pool{New: func() any { return new([intentBlock]byte) }}

// Regions is the number of regions of the LUN.
func (x *Intents) Regions() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.regions
}

// Unreadable is how many blocks OpenIntents could not read or did not find, and counted as
// dirty.
func (x *Intents) Unreadable() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.unreadable
}

// Writes is how many block writes have been made since OpenIntents. Compared with the number of Set
// it shows what group commit saves.
func (x *Intents) Writes() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.count
}

// Dirty is a copy of the regions that are set, those included whose Set has not returned yet: bit
// i%64 of word i/64 is region i.
func (x *Intents) Dirty() []uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]uint64(nil), x.set...)
}

// Count is the number of regions that are set.
func (x *Intents) Count() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, w := range x.set {
		n += bits.OnesCount64(w)
	}
	return int64(n)
}

// Set returns when the bits of all these regions are durable. Those that are already cost nothing;
// concurrent calls for regions of one block share writes. Several regions in one call are cheaper
// than one after the other, so a caller that sees a sequential stream sets ahead. A region outside
// the LUN is ErrRange. A failed write makes the store untrusted (R12); it never fails for space,
// which was allocated before.
func (x *Intents) Set(regions []uint32) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range regions {
		if int64(r) >= x.regions {
			return fmt.Errorf("intents %s: region %d of %d: %w", x.path, r, x.regions, ErrRange)
		}
	}
	return x.ensureLocked(intentRequest{regions: regions, last: -1})
}

// SetRange is Set of every region that the bytes [off, off+length) touch.
func (x *Intents) SetRange(off, length int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if off < 0 || length < 0 || off > x.regions*RegionSize-length {
		return fmt.Errorf("intents %s: %d+%d: %w", x.path, off, length, ErrRange)
	}
	if length == 0 {
		return nil
	}
	return x.ensureLocked(intentRequest{first: off / RegionSize, last: (off + length - 1) / RegionSize})
}

// intentRequest is the regions one caller wants: a list and a range, of which one is empty.
type intentRequest struct {
	regions     []uint32
	first, last int64
}

// addLocked puts the request into set and returns the first block of it that is not durable, -1
// when all is.
func (x *Intents) addLocked(req *intentRequest) int {
	block := -1
	for _, r := range req.regions {
		word, mask := int(r/64), uint64(1)<<(r%64)
		x.set[word] |= mask
		if block < 0 && x.durable[word]&mask == 0 {
			block = word / blockWords
		}
	}
	for r := req.first; r <= req.last; {
		lo, hi := r%64, min(63, r%64+req.last-r)
		word, mask := int(r/64), ^uint64(0)>>(63-hi)&^(1<<lo-1)
		x.set[word] |= mask
		if block < 0 && x.durable[word]&mask != mask {
			block = word / blockWords
		}
		r += hi - lo + 1
	}
	return block
}

// ensureLocked puts the request into set, and writes until it is durable. It releases the lock
// while it writes or waits.
func (x *Intents) ensureLocked(req intentRequest) error {
	for {
		if x.closed {
			return fmt.Errorf("intents %s: %w", x.path, os.ErrClosed)
		}
		if err := x.s.Failed(); err != nil {
			return err
		}
		// In every round again: a Clear may have come meanwhile, and a write without what it took
		// from set.
		block := x.addLocked(&req)
		if block < 0 {
			return nil
		}
		if err := x.writeLocked(block); err != nil {
			return err
		}
	}
}

// writeLocked writes a block, or waits for the write of it that is under way, which may not hold
// what the caller wants and may fail: the caller looks again.
func (x *Intents) writeLocked(block int) error {
	if w := x.writes[block]; w != nil {
		x.waitLocked(w)
		return nil
	}
	if err := x.s.Failed(); err != nil {
		return err
	}
	w := &intentWrite{done: make(chan struct{})}
	x.writes[block] = w
	x.count++
	buf := intentBuffers.Get().(*[intentBlock]byte)
	from, to := x.wordsOf(block)
	x.owner.encode(buf[:], uint32(block), x.set[from:to])
	for i := from; i < to; i++ {
		x.durable[i] &= x.set[i]
	}
	x.mu.Unlock()
	err := x.pwrite(buf[:], block)
	x.mu.Lock()
	if err == nil {
		intentWords(buf[:], x.durable[from:to])
	}
	intentBuffers.Put(buf)
	delete(x.writes, block)
	close(w.done)
	return err
}

func (x *Intents) waitLocked(w *intentWrite) {
	x.mu.Unlock()
	<-w.done
	x.mu.Lock()
}

func (x *Intents) wordsOf(block int) (from, to int) {
	return block * blockWords, min((block+1)*blockWords, len(x.set))
}

// pwrite puts a block on stable storage. Space is allocated, so any failure is one of the store
// (R12).
func (x *Intents) pwrite(p []byte, block int) error {
	off := int64(block) * intentBlock
	err := x.s.fault(FaultIntent, x.path, off, intentBlock)
	if err == nil {
		_, err = x.f.WriteAt(p, off)
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w: %w", x.path, ErrMedia, err)
		x.s.fail(err)
	}
	return err
}

// Clear takes every region that is not in keep out of the bitmap, at once in memory; words that
// keep lacks are zero. On disk the bits go with the next write of their block, or with Flush or
// Close. It does not wait for writes.
//
// A Set that has not returned yet is not undone. One that has returned is: the caller decides what
// to keep and calls Clear under the lock under which writes enter their regions, or a write could
// be under way in a region whose bit is being cleared.
func (x *Intents) Clear(keep []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.set {
		if i < len(keep) {
			x.set[i] &= keep[i]
		} else {
			x.set[i] = 0
		}
	}
}

// Flush makes what Clear took out before the call durable too.
func (x *Intents) Flush() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return fmt.Errorf("intents %s: %w", x.path, os.ErrClosed)
	}
	return x.flushLocked()
}

func (x *Intents) flushLocked() error {
	for block := 0; block < blocksFor(x.regions); block++ {
		if w := x.writes[block]; w != nil {
			x.waitLocked(w) // it may have begun before the call
		}
		if !x.staleLocked(block) {
			continue
		}
		// A write that another caller has begun since is as good as one of our own.
		if err := x.writeLocked(block); err != nil {
			return err
		}
		if err := x.s.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// staleLocked: the block on disk is not, or may not be, what set says.
func (x *Intents) staleLocked(block int) bool {
	if x.writes[block] != nil {
		return true
	}
	from, to := x.wordsOf(block)
	for i := from; i < to; i++ {
		if x.set[i] != x.durable[i] {
			return true
		}
	}
	return false
}

// Close flushes and closes the file. Calls that are waiting for durability meanwhile may fail with
// os.ErrClosed. The file is closed even if the flush fails; a store that has failed is not written.
func (x *Intents) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil
	}
	x.closed = true // no Set from here on, so the flush ends
	err := x.flushLocked()
	for _, w := range x.writes { // what a failed flush left under way
		x.waitLocked(w)
	}
	if cerr := x.f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close %s: %w", x.path, cerr)
	}
	return err
}
