package sums

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gemel-storage/gemel/internal/prefetch"
)

// atlas finds those pages of a file that are in the cache without a lock: most reads find their
// checksums here, and two that look at once change nothing that the other one needs. With the map
// and the lock of a shard a check of 4 KiB took 380 ns of CPU, of which the CRC is 140.
//
// A page is in it only while it is in the cache and after it was loaded: the lock of its shard is
// held where it is kept, and where it is forgotten before it leaves the cache. Who found it a
// moment before still compares with a page that the cache has no more. That finds nothing which is
// not so: what changes the checksum of a block holds a lock of its range, or Check is asked again
// under one when it finds a fault.
//
// It costs 8 bytes for each page of a quarter of a GiB of which any page was read, and as much for
// each such quarter of the LUN: 0.5 MiB for 16 TiB.
type atlas struct {
	mu     sync.Mutex // of who changes sheets, in length or in what it points to
	sheets atomic.Pointer[[]*sheet]
}

type sheet [sheetPages]atomic.Pointer[page]

const sheetPages = 64

// find returns a page, or nil where the cache has to be asked.
func (a *atlas) find(n int64) *page {
	if list := a.sheets.Load(); list != nil && n/sheetPages < int64(len(*list)) {
		if s := (*list)[n/sheetPages]; s != nil {
			return s[n%sheetPages].Load()
		}
	}
	return nil
}

// keep lets find return a page that is loaded. The lock of its shard is held.
func (a *atlas) keep(p *page) {
	if a.find(p.n) == p {
		return
	}
	if list := a.sheets.Load(); list != nil && p.n/sheetPages < int64(len(*list)) {
		if s := (*list)[p.n/sheetPages]; s != nil {
			s[p.n%sheetPages].Store(p)
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	blocks := p.f.blocks.Load()
	list := make([]*sheet, max(blocks/pageSums, p.n)/sheetPages+1)
	if old := a.sheets.Load(); old != nil {
		copy(list, *old)
	}
	s := list[p.n/sheetPages]
	if s == nil {
		s = new(sheet)
		list[p.n/sheetPages] = s
	}
	s[p.n%sheetPages].Store(p)
	a.sheets.Store(&list)
}

// forget has find not return a page any more that leaves the cache. The lock of its shard is held.
func (a *atlas) forget(p *page) {
	if a.find(p.n) == p {
		(*a.sheets.Load())[p.n/sheetPages][p.n%sheetPages].Store(nil)
	}
}

// counted is of how many hits without a lock one is counted, as so many: a counter that all
// processors write costs each of them as much as the rest of the look.
const counted = 64

// Expected is where the checksum of a block is, perhaps; see Expect.
type Expected struct{ p *page }

// Expect says that blocks from first on are about to be read and checked, so that their
// checksums are fetched from memory while the data is read. Checksums are spread over a
// thousandth of the size of what hosts read, so they are rarely in the processor's cache, and
// waiting for them took as long as the CRC. It never waits itself.
func (f *File) Expect(first int64) Expected {
	p := f.atlas.find(first / pageSums)
	if p != nil {
		prefetch.Line(unsafe.Pointer(&p.sums[first%pageSums]))
	}
	return Expected{p}
}

// Matches reports whether data, whole blocks from block first on, matches its checksums, which
// Expect(first) fetched. False does not mean that they differ: Check decides that.
func (f *File) Matches(e Expected, first int64, data []byte) bool {
	n := Blocks(int64(len(data)))
	slot := first % pageSums
	if e.p == nil || slot+n > pageSums || f.inside(first, n) != nil || first+n > f.known.Load() {
		return false
	}
	for len(data) >= BlockSize {
		if Of(data[:BlockSize]) != e.p.load(slot) {
			return false
		}
		data, slot = data[BlockSize:], slot+1
	}
	if len(data) > 0 && Of(data) != e.p.load(slot) {
		return false
	}
	if !e.p.used.Load() {
		e.p.used.Store(true)
	}
	if rand.Uint32()%counted == 0 {
		f.c.hits.Add(counted)
	}
	return true
}
