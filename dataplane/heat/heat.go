// Package heat records which parts of a LUN hosts have read most lately, so that a node can tell
// the one that takes the LUN over what to read ahead. The record has a fixed size, forgets by
// itself, and costs a read one atomic operation (BenchmarkRead).
package heat

import (
	"cmp"
	"slices"
	"sync/atomic"
)

const (
	// Extent is the length in bytes of what reads are counted by.
	Extent = 1 << 20

	sets = 32
	ways = 8 // the slots of a set share a cache line

	// tickBits: a count is halved every 2^36 ns, about 69 s. An extent that is read no more is
	// forgotten after 16 of them at most.
	tickBits = 36

	// spanMax is how many extents of one read are counted.
	spanMax = 16

	// enough is how many reads make an extent hot: what was read once need not be read again.
	enough = 2

	countMax = 1<<16 - 1
)

// Record is that of one LUN, whose size may be up to 4 PiB. The zero value is ready, and takes
// 2 KiB of memory from the first read on. Its methods are safe for concurrent use and never block.
type Record struct {
	table atomic.Pointer[table]
}

// table is a cache of the extents that are read most. A slot is an extent (32 bits), the low bits
// of the tick at which its count was last brought up to date (16), and the count (16), 0 if the
// slot is free. A new extent takes a free slot of its set, or else takes one off the smallest count
// there: many extents that are read once, as by a backup, do not displace what is read again and
// again.
type table [sets][ways]atomic.Uint64

func slotOf(extent, tick, count uint64) uint64 { return extent<<32 | tick&0xffff<<16 | count }

// countAt is what is left of a slot's count at a tick.
func countAt(slot, tick uint64) uint64 {
	age := (tick - slot>>16) & 0xffff
	if age == 0xffff { // another goroutine is a tick ahead
		age = 0
	}
	if age > 16 {
		return 0
	}
	return slot & countMax >> age
}

func tickOf(now int64) uint64 { return uint64(now) >> tickBits }

// Read counts a read of n bytes at off, at the time now (ns of a clock that is not set back). Of
// two reads that change a slot at the same time one may not be counted.
func (r *Record) Read(off, n, now int64) {
	if off < 0 || n <= 0 {
		return
	}
	t := r.table.Load()
	if t == nil {
		t = new(table)
		if !r.table.CompareAndSwap(nil, t) {
			t = r.table.Load()
		}
	}
	tick := tickOf(now)
	first := uint64(off) / Extent
	last := min((uint64(off)+uint64(n)-1)/Extent, first+spanMax-1, 1<<32-1)
	for x := first; x <= last; x++ {
		t.count(x, tick)
	}
}

func (t *table) count(extent, tick uint64) {
	set := &t[hash(extent)%sets]
	least, leastCount, leastSlot := 0, uint64(countMax+1), uint64(0)
	for i := range set {
		slot := set[i].Load()
		c := countAt(slot, tick)
		if slot>>32 == extent && c > 0 {
			set[i].CompareAndSwap(slot, slotOf(extent, tick, min(c+1, countMax)))
			return
		}
		if c < leastCount {
			least, leastCount, leastSlot = i, c, slot
		}
	}
	next := slotOf(extent, tick, 1)
	if leastCount > 0 {
		next = slotOf(leastSlot>>32, tick, leastCount-1)
	}
	set[least].CompareAndSwap(leastSlot, next)
}

// hash spreads neighbours over the sets, and what is a power of two apart as well.
func hash(x uint64) uint64 { return x * 0x9e3779b97f4a7c15 >> 40 }

// Hot is an extent that is read.
type Hot struct {
	Extent int64  // its offset in the LUN is as many times Extent
	Reads  uint64 // lately: each counts half after about 69 s
}

// Hottest returns the extents that were read most at the time now, so many at most, the hottest
// first. One that was read only once is not among them.
func (r *Record) Hottest(now int64, most int) []Hot {
	t := r.table.Load()
	if t == nil {
		return nil
	}
	tick := tickOf(now)
	var out []Hot
	seen := map[uint64]bool{} // two goroutines may have put one extent into two slots
	for i := range t {
		for j := range t[i] {
			slot := t[i][j].Load()
			if c := countAt(slot, tick); c >= enough && !seen[slot>>32] {
				seen[slot>>32] = true
				out = append(out, Hot{int64(slot >> 32), c})
			}
		}
	}
	slices.SortFunc(out, func(x, y Hot) int { return cmp.Or(cmp.Compare(y.Reads, x.Reads), cmp.Compare(x.Extent, y.Extent)) })
	return out[:min(len(out), max(most, 0))]
}
