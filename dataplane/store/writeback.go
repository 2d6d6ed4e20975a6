package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Writes go into the page cache, and the kernel lets it take a fifth of the memory before it makes
// writers wait. A flush then takes as long as the disk needs for all of that: many seconds, in
// which a member answers nothing. So what is not flushed is bounded here, by backing volume: by
// what its disk was seen to write in unflushedTime. Above half of the bound it is written out in
// batches, above the bound writers wait. The kernel's own bound stays behind it.

const (
	// unflushedTime is how long a flush of everything takes at the bound.
	unflushedTime = 250 * time.Millisecond
	// The bound stays between these, in bytes: a disk that writes nothing for a moment must not
	// stop writers for good; and a disk that is fast may be slow the next moment, as one is whose
	// burst credits are used up, and then has to write all of it at that speed. At 12 MiB/s it
	// takes half of Dm. The bound of a disk that has not been seen under pressure is the upper one.
	unflushedMin = 8 << 20
	unflushedMax = 32 << 20
	// writers is how many batches are written out side by side.
	writers = 2
	// paceRounds bounds how often a flush writes out what was written meanwhile, and paceTime for
	// how long: a disk that takes longer is not given still more.
	paceRounds = 4
	paceTime   = 2 * unflushedTime
	// lookEvery is how many bytes are written before the disk is looked at again.
	lookEvery = 1 << 20
)

// writeback bounds what is not flushed of one backing volume.
type writeback struct {
	s     *Store
	dirty atomic.Int64 // bytes written and not flushed; a block that was written twice counts twice
	limit atomic.Int64
	waits atomic.Uint64 // writes that had to wait
	queue atomic.Int32  // length of waiting
	wg    sync.WaitGroup

	copying sync.Mutex // held by the one copy that copies in the background

	mu      sync.Mutex
	waiting []*waiter // in order of arrival
	files   []*image  // with pieces to write out, in turn
	busy    int       // writers
	flushes int       // of whole files, that are under way
	rate    rate
	unseen  int64 // bytes written since the disk was looked at
}

// waiter is a write that waits for room.
type waiter struct {
	bytes int64
	ready chan bool // true: there is room; false: nothing makes room any more
}

var waiters = sync.Pool{New: func() any { return &waiter{ready: make(chan bool, 1)} }}

func newWriteback(s *Store) *writeback {
	w := &writeback{s: s}
	w.limit.Store(unflushedMax)
	return w
}

// full reports that a write would have to wait.
func (w *writeback) full() bool { return w.dirty.Load() >= w.limit.Load() || w.queue.Load() > 0 }

// wait holds a write of so many bytes until there is room for it, in order of arrival: a disk that
// is slower than its writers makes all of them wait alike, and none for long. It returns early when
// the store has failed, whose writes are refused then.
func (w *writeback) wait(bytes int64) {
	if !w.full() {
		return
	}
	w.waits.Add(1)
	x := waiters.Get().(*waiter)
	defer waiters.Put(x)
	x.bytes = bytes
	for room := false; !room; {
		w.mu.Lock()
		if !w.full() || w.s.Failed() != nil {
			w.mu.Unlock()
			return
		}
		w.look()
		w.work()
		if w.busy == 0 {
			w.mu.Unlock()
			return // what counts belongs to a flush that is under way, which may take long; the disk is at work
		}
		w.waiting = append(w.waiting, x)
		w.queue.Add(1)
		w.mu.Unlock()
		room = <-x.ready
	}
}

// admit lets those go for whom there is room, or all when nothing makes room any more. mu is held.
func (w *writeback) admit() {
	room, n := w.limit.Load()-w.dirty.Load(), 0
	for _, x := range w.waiting {
		if room <= 0 && w.busy > 0 {
			break
		}
		x.ready <- room > 0
		room -= x.bytes
		n++
	}
	if n > 0 {
		w.waiting = slices.Delete(w.waiting, 0, n)
		w.queue.Add(-int32(n))
	}
}

// wrote counts what a file has got in the page cache.
func (w *writeback) wrote(f *image, off, length int64) {
	if length == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f.pieces.add(off, length)
	w.dirty.Add(length)
	if w.unseen += length; w.unseen >= lookEvery { // reading the clock costs as much as the rest
		w.look()
	}
	if !f.pieces.queued {
		f.pieces.queued = true
		w.files = append(w.files, f)
	}
	w.work()
}

// work starts writers if there is much to write out. mu is held.
func (w *writeback) work() {
	for w.busy < writers && len(w.files) > 0 && w.dirty.Load() > w.limit.Load()/2 && !w.resting() {
		f, b := w.next()
		if f == nil {
			return
		}
		w.begins()
		w.rate.out += bytesOf(b)
		w.wg.Go(func() { w.writer(f, b) })
	}
}

// resting reports that nothing should be written out now: a disk that empties its cache takes
// nothing meanwhile, and who gives it something waits with the lock of a folio in hand. mu is held.
func (w *writeback) resting() bool { return w.flushes > 0 && w.dirty.Load() < w.limit.Load() }

func (w *writeback) begins() {
	if w.busy++; w.busy == 1 {
		w.rate.begin(time.Now())
	}
}

func (w *writeback) ends() {
	if w.busy--; w.busy == 0 {
		w.rate.end(time.Now())
	}
	w.admit()
}

// next takes a batch, of the files in turn. mu is held.
func (w *writeback) next() (*image, []piece) {
	for len(w.files) > 0 {
		f := w.files[0]
		w.files = w.files[1:]
		b := f.pieces.batch()
		if f.pieces.queued = f.pieces.any(); f.pieces.queued {
			w.files = append(w.files, f)
		}
		if len(b) > 0 {
			return f, b
		}
	}
	return nil, nil
}

// writer writes batches out until there is little left.
func (w *writeback) writer(f *image, b []piece) {
	for f != nil {
		_ = f.writeOutBatch(b) // a failure is the store's
		w.mu.Lock()
		w.ended(bytesOf(b))
		if w.s.Failed() != nil || w.dirty.Load() <= w.limit.Load()/4 || w.resting() {
			f = nil
		} else {
			f, b = w.next()
		}
		if f == nil {
			w.ends()
		} else {
			w.rate.out += bytesOf(b)
		}
		w.mu.Unlock()
	}
}

// pace writes out what a file has in the page cache before a flush of the whole file, in batches as
// for room, so that those who write meanwhile wait no longer than at any other time: the kernel
// would have all of it under way at once. What they write meanwhile is written out in turn, but not
// for ever, and what a batch or two hold is left to the flush. It returns the bytes that are left.
func (w *writeback) pace(f *image) int64 {
	begun := time.Now()
	for n := 0; n < paceRounds && time.Since(begun) < paceTime; n++ {
		all := w.take(f)
		if writesOf(all) <= 2*batchWrites {
			return bytesOf(all)
		}
		if left := w.writeOutAll(f, all); left > 0 {
			return left // the store has failed
		}
	}
	return bytesOf(w.take(f))
}

// flush does a flush of a whole file.
func (w *writeback) flush(do func() error) error {
	w.count(1)
	defer w.count(-1)
	return do()
}

func (w *writeback) count(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushes += n
	w.work()
}

// writeOutAll returns the bytes that it has not written out, as the store has failed.
func (w *writeback) writeOutAll(f *image, all []piece) int64 {
	var wg sync.WaitGroup
	w.mu.Lock()
	for range writers {
		w.begins()
		wg.Go(func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			for len(all) > 0 && w.s.Failed() == nil {
				b := all[:batchLength(all)]
				all = all[len(b):]
				w.rate.out += bytesOf(b)
				w.mu.Unlock()
				_ = f.writeOutBatch(b) // a failure is the store's
				w.mu.Lock()
				w.ended(bytesOf(b))
			}
			w.ends()
		})
	}
	w.mu.Unlock()
	wg.Wait()
	return bytesOf(all)
}

// ended counts bytes that are flushed, or that will never be. mu is held.
func (w *writeback) ended(bytes int64) {
	w.dirty.Add(-bytes)
	if w.busy > 0 { // a flush of its own is no measure: most of its time may be the journal's
		w.rate.wrote(bytes, time.Now())
		w.bound()
	}
	w.admit()
}

// look notices that the disk has become slow, before what it was given is written. mu is held.
func (w *writeback) look() {
	w.unseen = 0
	if w.busy > 0 && w.dirty.Load() > unflushedMin && w.rate.look(time.Now()) {
		w.bound()
	}
}

// bound sets the limit by the rate. mu is held.
func (w *writeback) bound() {
	if r := w.rate.perSecond; r > 0 {
		w.limit.Store(min(max(int64(r*unflushedTime.Seconds()), unflushedMin), unflushedMax))
	}
}

// has reports that a file has something in the page cache that no flush of the whole file was
// given.
func (w *writeback) has(f *image) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f.pieces.any()
}

// take hands what a file has in the page cache to a flush of the whole file.
func (w *writeback) take(f *image) []piece {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f.pieces.all()
}

// flushed is the end of that flush, whatever came of it.
func (w *writeback) flushed(bytes int64) {
	if bytes > 0 {
		w.mu.Lock()
		w.ended(bytes)
		w.mu.Unlock()
	}
}

// Unflushed is what of a backing volume is in the page cache and not on the disk.
type Unflushed struct {
	Bytes, Limit int64   // writers wait while Bytes is not below Limit
	Rate         float64 // bytes a second that the disk was last seen to write, 0: not seen under pressure yet
	Waits        uint64  // writes that had to wait since the start of the process
}

// Unflushed reads it.
func (v *BackingVolume) Unflushed() Unflushed {
	w := v.writeback
	w.mu.Lock()
	defer w.mu.Unlock()
	return Unflushed{Bytes: w.dirty.Load(), Limit: w.limit.Load(), Rate: w.rate.perSecond, Waits: w.waits.Load()}
}
