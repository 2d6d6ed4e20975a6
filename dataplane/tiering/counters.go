package tiering

import "sync/atomic"

const (
	// streams is how many sequences of one LUN are followed at a time.
	streams = 8
	// sequence is how many bytes in a row make a sequence. What comes before is counted.
	sequence = 512 << 10
	// gap is how far, in bytes, a request of a sequence may be from the end of the last one:
	// several requests of one sequence are under way, and overtake each other.
	gap = 1 << 20
	// lates is how many requests may come from before the end of a sequence until it goes on: those
	// that were overtaken. With more, it has ended, and they are random ones.
	lates = 64
	// pageExtents is how many extents share a page of counters, which takes memory when one of
	// them is used.
	pageExtents = 512
)

// Counters count how often hosts use the extents of one LUN. Methods are safe for concurrent use
// and do not block; of requests that come at the same instant one may be counted wrongly.
type Counters struct {
	pages []atomic.Pointer[counterPage]
	ends  [streams]stream
	turn  atomic.Uint32
}

type counterPage [pageExtents]struct{ reads, writes atomic.Uint32 }

// stream is a sequence: where it has come to, how long it is, in bytes, whether it has gone on
// since the last search for one to replace, and how many requests have come late since it went on.
type stream struct {
	end, length atomic.Int64
	goesOn      atomic.Bool
	late        atomic.Int32
}

// NewCounters are for a LUN of so many bytes.
func NewCounters(size int64) *Counters {
	extents := (size + ExtentSize - 1) / ExtentSize
	c := &Counters{pages: make([]atomic.Pointer[counterPage], (extents+pageExtents-1)/pageExtents)}
	for i := range c.ends {
		c.ends[i].end.Store(-1)
	}
	return c
}

// Read counts a read of n bytes at off that the page cache did not have.
func (c *Counters) Read(off, n int64) { c.use(off, n, false) }

// Write counts a write.
func (c *Counters) Write(off, n int64) { c.use(off, n, true) }

func (c *Counters) use(off, n int64, write bool) {
	if off < 0 || n <= 0 || c.follows(off, n) {
		return
	}
	for e := off / ExtentSize; e <= (off+n-1)/ExtentSize; e++ {
		i := int(e / pageExtents)
		if i >= len(c.pages) {
			return
		}
		p := c.pages[i].Load()
		if p == nil {
			p = new(counterPage)
			if !c.pages[i].CompareAndSwap(nil, p) {
				p = c.pages[i].Load()
			}
		}
		if x := &p[e%pageExtents]; write {
			x.writes.Add(1)
		} else {
			x.reads.Add(1)
		}
	}
}

// follows tells whether a request belongs to a sequence that is long already, and goes on with the
// sequence that it belongs to.
func (c *Counters) follows(off, n int64) bool {
	for i := range c.ends {
		s := &c.ends[i]
		end, length := s.end.Load(), s.length.Load()
		long := length >= sequence
		switch {
		case off == end, long && off > end && off-end <= gap:
			s.end.Store(off + n)
			s.length.Store(length + n)
			s.goesOn.Store(true)
			s.late.Store(0)
			return long
		case long && off < end && end-off <= gap && s.late.Add(1) <= lates: // it was overtaken
			s.goesOn.Store(true)
			return true
		}
	}
	s := &c.ends[c.turn.Add(1)%streams]
	for range streams {
		if !s.goesOn.Swap(false) {
			break
		}
		s = &c.ends[c.turn.Add(1)%streams]
	}
	s.end.Store(off + n)
	s.length.Store(n)
	s.late.Store(0)
	return n >= sequence
}

// Take returns what was counted since the last call, by extent, and begins again.
func (c *Counters) Take() (all []Count) {
	for i := range c.pages {
		p := c.pages[i].Load()
		if p == nil {
			continue
		}
		for j := range p {
			if x := &p[j]; x.reads.Load() > 0 || x.writes.Load() > 0 {
				all = append(all, Count{i*pageExtents + j, x.reads.Swap(0), x.writes.Swap(0)})
			}
		}
	}
	return all
}
