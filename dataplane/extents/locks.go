package extents

import "sync"

// lockBuckets is how many locks the extents of a LUN share: one that moves keeps the others of its
// bucket waiting, for as long as a piece is copied.
const lockBuckets = 256

// locks are of extents: shared by what hosts do with the place of an extent, exclusive for what
// changes the place. Who waits for one waits on a condition, see longlock. No goroutine holds two.
type locks [lockBuckets]bucket

type bucket struct {
	mu        sync.Mutex
	free      *sync.Cond
	shared    int
	exclusive bool
	wanted    int             // that wait to be exclusive: they go before those that come to share
	moves     map[int64]*move // under way, by extent: read by who shares, changed by who is exclusive
}

func (l *locks) of(extent int64) *bucket { return &l[extent%lockBuckets] }

func (b *bucket) lock() {
	b.mu.Lock()
	if b.free == nil {
		b.free = sync.NewCond(&b.mu)
	}
}

func (b *bucket) share() {
	b.lock()
	for b.exclusive || b.wanted > 0 {
		b.free.Wait()
	}
	b.shared++
	b.mu.Unlock()
}

func (b *bucket) unshare() {
	b.lock()
	if b.shared--; b.shared == 0 {
		b.free.Broadcast()
	}
	b.mu.Unlock()
}

func (b *bucket) take() {
	b.lock()
	b.wanted++
	for b.exclusive || b.shared > 0 {
		b.free.Wait()
	}
	b.wanted--
	b.exclusive = true
	b.mu.Unlock()
}

func (b *bucket) give() {
	b.lock()
	b.exclusive = false
	b.free.Broadcast()
	b.mu.Unlock()
}

// tryShare is share that does not wait; false if it would.
func (b *bucket) tryShare() bool {
	b.lock()
	defer b.mu.Unlock()
	if b.exclusive || b.wanted > 0 {
		return false
	}
	b.shared++
	return true
}
