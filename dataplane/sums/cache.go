package sums

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

// shards is into how many parts a Cache is divided, each with a lock of its own.
const shards = 64

// A Cache holds pages of the files that were opened with it. What has not changed is evicted beyond
// its budget, and what has is written out before it takes more than half of it. All methods are
// safe for concurrent use.
type Cache struct {
	// Hooks are set before the first file is opened.
	Hooks Hooks

	limit  int64 // pages
	seed   maphash.Seed
	shards [shards]shard

	pages  atomic.Int64
	dirty  atomic.Int64
	hits   atomic.Uint64
	misses atomic.Uint64
	lost   atomic.Uint64

	mu    sync.Mutex
	files map[*File]struct{}
}

// Hooks are called by a cache for its owner. Each may be nil. They are called concurrently, and
// must not call the file.
type Hooks struct {
	// Write and Sync are asked before an open file is changed or flushed; an error takes the place
	// of that.
	Write func(path string, off, length int64) error
	Sync  func(path string) error
	// Failed is called for each file that has become useless, once, before the call that found out
	// returns: a write-out may be made for the sake of another file, whose caller is not concerned.
	Failed func(err error)
}

// Stats are a Cache's figures.
type Stats struct {
	Pages, Dirty, Limit int64  // pages of PageMemory bytes
	Hits, Misses        uint64 // Hits is an estimate where no lock was taken (atlas.go)
	LostSectors         uint64 // that did not check when they were read; their sums are Unknown
}

// PageMemory is about what a page costs, in bytes; it has the checksums of 3.94 MiB of a LUN.
const PageMemory = 4096 + 192

// NewCache makes a cache of about budget bytes, at least of 1 MiB.
func NewCache(budget int64) *Cache {
	c := &Cache{limit: max(budget, 1<<20) / PageMemory, seed: maphash.MakeSeed(), files: map[*File]struct{}{}}
	for i := range c.shards {
		c.shards[i].pages = map[key]*page{}
	}
	return c
}

// Stats are the figures of now.
func (c *Cache) Stats() Stats {
	return Stats{Pages: c.pages.Load(), Dirty: c.dirty.Load(), Limit: c.limit, Hits: c.hits.Load(), Misses: c.misses.Load(), LostSectors: c.lost.Load()}
}

type key struct {
	f *File
	n int64 // of the page in the file
}

// page is one page of a file in memory. All of it belongs to the lock of its shard, but for sums
// and used, which are also read without it (atlas.go).
type page struct {
	key
	sums    [pageSums]Sum // changed by store only
	loading chan struct{} // closed when sums are there, or are not to be had
	stale   bool          // sums were made zero while it was loading
	used    atomic.Bool   // since the clock's hand passed
	dirty   bool          // it differs from the file
	writing bool          // it is being written: what the file has may be older
	slot    int           // in ring
}

type shard struct {
	mu    sync.Mutex
	pages map[key]*page
	ring  []*page // in no order
	hand  int
}

func (c *Cache) shard(k key) *shard { return &c.shards[maphash.Comparable(c.seed, k)%shards] }

// store changes a checksum. The lock of the page's shard is held.
func (p *page) store(i int64, x Sum) { atomic.StoreUint32((*uint32)(&p.sums[i]), uint32(x)) }

// load is a checksum, also without the lock.
func (p *page) load(i int64) Sum { return Sum(atomic.LoadUint32((*uint32)(&p.sums[i]))) }

// add puts a page into the cache, and evicts others from the shard when there are too many. mu is
// held.
func (c *Cache) add(s *shard, p *page) {
	for range 2 * len(s.ring) { // twice: the first round may only take the marks of use away
		if c.pages.Load() < c.limit || len(s.ring) == 0 {
			break
		}
		s.hand++
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		switch q := s.ring[s.hand]; {
		case q.loading != nil || q.dirty || q.writing:
		case q.used.Load():
			q.used.Store(false)
		default:
			c.drop(s, q)
		}
	}
	p.slot = len(s.ring)
	s.ring = append(s.ring, p)
	s.pages[p.key] = p
	c.pages.Add(1)
}

// drop takes a page out of the cache. mu is held.
func (c *Cache) drop(s *shard, p *page) {
	last := s.ring[len(s.ring)-1]
	s.ring[p.slot], last.slot = last, p.slot
	s.ring[len(s.ring)-1] = nil
	s.ring = s.ring[:len(s.ring)-1]
	delete(s.pages, p.key)
	p.f.atlas.forget(p)
	c.pages.Add(-1)
}

// relieve writes pages out, of the file that has most to write, while more than half of the budget
// has changed: a page that has changed cannot be evicted. What goes wrong is that file's affair;
// one that finds no space keeps its pages in memory, beyond the budget if it has to be.
func (c *Cache) relieve() {
	var stuck []*File
	for c.dirty.Load() > c.limit/2 {
		var worst *File
		var most int
		c.mu.Lock()
		for f := range c.files {
			if n := f.dirtyPages(); n > most && !slices.Contains(stuck, f) {
				worst, most = f, n
			}
		}
		c.mu.Unlock()
		if worst == nil {
			return
		}
		if worst.writeOut() != nil {
			stuck = append(stuck, worst)
		}
	}
}
