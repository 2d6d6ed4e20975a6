package store

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// doubt is of which blocks the checksums are not believed: a bitmap for each 4 MiB that has some,
// and none where all of them are. It is in memory only: what says so after a crash is the
// write-intent bits.
type doubt struct {
	count atomic.Int64

	mu   sync.Mutex
	maps map[int64]*doubtMap // nil: all of its blocks
}

const doubtBlocks = 1024 // of a bitmap

type doubtMap [doubtBlocks / 64]uint64

func (d *doubt) blocks() int64 { return d.count.Load() }

// mask is the bits of word w of a bitmap that are in [from, to).
func mask(w, from, to int64) uint64 {
	lo, hi := max(from-64*w, 0), min(to-64*w, 64)
	if lo >= hi {
		return 0
	}
	return ^uint64(0) >> (64 - (hi - lo)) << lo
}

func (m *doubtMap) count(from, to int64) (n int64) {
	if m == nil {
		return to - from
	}
	for w := range m {
		n += int64(bits.OnesCount64(m[w] & mask(int64(w), from, to)))
	}
	return n
}

// each calls fn for the parts of n blocks from first on, by bitmap, until it says false. has is
// false where no block is in doubt.
func (d *doubt) each(first, n int64, fn func(key, from, to int64, m *doubtMap, has bool) bool) {
	for end := first + n; first < end; {
		key := first / doubtBlocks
		to := min(end, (key+1)*doubtBlocks)
		m, has := d.maps[key]
		if !fn(key, first-key*doubtBlocks, to-key*doubtBlocks, m, has) {
			return
		}
		first = to
	}
}

func (d *doubt) add(first, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		d.maps = map[int64]*doubtMap{}
	}
	d.each(first, n, func(key, from, to int64, m *doubtMap, has bool) bool {
		switch {
		case has && m == nil:
			return true
		case to-from == doubtBlocks:
			if has {
				d.count.Add(-m.count(0, doubtBlocks))
			}
			d.maps[key] = nil
			d.count.Add(doubtBlocks)
			return true
		case !has:
			m = &doubtMap{}
			d.maps[key] = m
		}
		d.count.Add(to - from - m.count(from, to))
		for w := range m {
			m[w] |= mask(int64(w), from, to)
		}
		return true
	})
}

// clear says that n blocks from first on are not in doubt any more, and returns how many of them
// were.
func (d *doubt) clear(first, n int64) (was int64) {
	if d.count.Load() == 0 {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.each(first, n, func(key, from, to int64, m *doubtMap, has bool) bool {
		if !has {
			return true
		}
		was += m.count(from, to)
		if to-from == doubtBlocks {
			delete(d.maps, key)
			return true
		}
		if m == nil {
			m = &doubtMap{}
			for w := range m {
				m[w] = ^uint64(0)
			}
			d.maps[key] = m
		}
		for w := range m {
			m[w] &^= mask(int64(w), from, to)
		}
		if *m == (doubtMap{}) {
			delete(d.maps, key)
		}
		return true
	})
	d.count.Add(-was)
	return was
}

// any says whether one of n blocks from first on is in doubt.
func (d *doubt) any(first, n int64) (found bool) {
	if d.count.Load() == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.each(first, n, func(_, from, to int64, m *doubtMap, has bool) bool {
		found = has && m.count(from, to) > 0
		return !found
	})
	return found
}

// list is the bitmaps that have blocks in doubt, in no order.
func (d *doubt) list() (keys []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key := range d.maps {
		keys = append(keys, key)
	}
	return keys
}

// Doubt marks the checksums of a range, widened to whole blocks, as not trusted: at the start of
// the node those of the regions whose write-intent bits are set, and all of a LUN whose store
// was not trusted. A read of such a block accepts its content and computes its checksum again; a
// write does, too. It counts for all Files of the LUN, until the store is closed.
func (f *File) Doubt(off, length int64) {
	if f.obj == nil || length <= 0 || off < 0 {
		return
	}
	first := off / sumBlock
	end := min((off+length+sumBlock-1)/sumBlock, f.obj.sums.Blocks())
	if end > first {
		f.obj.doubt.add(first, end-first)
	}
}

// DoubtedBlocks is how many blocks are in doubt.
func (f *File) DoubtedBlocks() int64 {
	if f.obj == nil {
		return 0
	}
	return f.obj.doubt.blocks()
}

// DoubtedIn reports whether the range has a block that is in doubt.
func (f *File) DoubtedIn(off, length int64) bool {
	if f.obj == nil || length <= 0 {
		return false
	}
	first := off / sumBlock
	return f.obj.doubt.any(first, (off+length+sumBlock-1)/sumBlock-first)
}
