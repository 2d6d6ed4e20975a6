package store

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Writes go into the page cache, and the kernel lets it take a fifth of the memory before it makes
// writers wait. A flush then takes as long as the disk needs for all of that: many seconds, in
// which a member answers nothing. So what is not flushed is bounded here, by backing volume: by
// what its disk was seen to write in unflushedTime. Above half of the bound it is written out in
// pieces, above the bound writers wait. The kernel's own bound stays behind it.

const (
	// unflushedTime is how long a flush of everything takes at the bound.
	unflushedTime = 250 * time.Millisecond
	// The bound stays between these, in bytes: a disk that writes nothing for a moment must not
	// stop writers for good, and memory is other processes', too.
	unflushedMin = 8 << 20
	unflushedMax = 256 << 20
	// unflushedStart is the bound of a disk that has not been seen to write under pressure yet.
	unflushedStart = 32 << 20
	// pieceSize is the range of a file, in bytes, that is written out at once.
	pieceSize = 16 << 20
	// pieces are written out side by side, so that a disk that serves several requests at a time is
	// kept busy.
	pieces = 4
	// rateEvery is how much time at work one sample of the rate covers.
	rateEvery = 100 * time.Millisecond
)

// writeback bounds what is not flushed of one backing volume.
type writeback struct {
	s     *Store
	dirty atomic.Int64 // bytes written and not flushed; a block that was written twice counts twice
	limit atomic.Int64
	waits atomic.Uint64 // writes that had to wait
	wg    sync.WaitGroup

	copying sync.Mutex // held by the one copy that copies in the background

	mu    sync.Mutex
	room  *sync.Cond // writers wait for dirty to be below limit
	files []*File    // with pieces to write out, in turn
	busy  int        // workers
	rate  rate
}

// rate is what the disk writes out, in bytes a second, seen only while it has enough to do.
type rate struct {
	perSecond float64
	bytes     int64
	since     time.Time // a worker has been busy since
	took      time.Duration
}

// pieceMap is what a file has in the page cache, by piece. It is protected by the volume's
// writeback.mu.
type pieceMap struct {
	bytes  map[int64]int64 // by number of the piece
	queued bool            // the file is in writeback.files
}

func newWriteback(s *Store) *writeback {
	w := &writeback{s: s}
	w.room = sync.NewCond(&w.mu)
	w.limit.Store(unflushedStart)
	return w
}

// wait holds a writer until there is room for what it writes. It returns early when the store has
// failed, whose writes are refused then.
func (w *writeback) wait() {
	if w.dirty.Load() < w.limit.Load() {
		return
	}
	w.waits.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.dirty.Load() >= w.limit.Load() && w.s.Failed() == nil {
		w.work()
		if w.busy == 0 {
			return // what counts belongs to a flush that is under way, which may take long; the disk is at work
		}
		w.room.Wait()
	}
}

// wrote counts what a file has got in the page cache.
func (w *writeback) wrote(f *File, off, length int64) {
	if length == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.pieces.bytes == nil {
		f.pieces.bytes = map[int64]int64{}
	}
	for length > 0 {
		n := min(length, pieceSize-off%pieceSize)
		f.pieces.bytes[off/pieceSize] += n
		off, length = off+n, length-n
		w.dirty.Add(n)
	}
	if !f.pieces.queued {
		f.pieces.queued = true
		w.files = append(w.files, f)
	}
	w.work()
}

// work starts workers if there is much to write out. mu is held.
func (w *writeback) work() {
	for w.busy < pieces && len(w.files) > 0 && w.dirty.Load() > w.limit.Load()/2 {
		f, piece, bytes := w.next()
		if f == nil {
			return
		}
		if w.busy++; w.busy == 1 {
			w.rate.since = time.Now()
		}
		w.wg.Go(func() { w.worker(f, piece, bytes) })
	}
}

// next takes a piece, of the files in turn. mu is held.
func (w *writeback) next() (*File, int64, int64) {
	for len(w.files) > 0 {
		f := w.files[0]
		w.files = w.files[1:]
		f.pieces.queued = false
		for piece, bytes := range f.pieces.bytes {
			delete(f.pieces.bytes, piece)
			if len(f.pieces.bytes) > 0 {
				f.pieces.queued = true
				w.files = append(w.files, f)
			}
			return f, piece, bytes
		}
	}
	return nil, 0, 0
}

// worker writes pieces out until there is little left.
func (w *writeback) worker(f *File, piece, bytes int64) {
	for {
		_ = f.writeOut(piece*pieceSize, pieceSize) // a failure is the store's
		w.mu.Lock()
		w.ended(bytes)
		if w.s.Failed() != nil || w.dirty.Load() <= w.limit.Load()/4 {
			f = nil
		} else {
			f, piece, bytes = w.next()
		}
		if f == nil {
			if w.busy--; w.busy == 0 {
				w.rate.took += time.Since(w.rate.since)
			}
			w.room.Broadcast()
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

// ended counts bytes that are flushed, or that will never be. mu is held.
func (w *writeback) ended(bytes int64) {
	w.dirty.Add(-bytes)
	w.room.Broadcast()
	if w.busy == 0 {
		return // a flush of its own: most of its time may be the journal's
	}
	r := &w.rate
	r.bytes += bytes
	now := time.Now()
	took := r.took + now.Sub(r.since)
	if took < rateEvery {
		return
	}
	sample := float64(r.bytes) / took.Seconds()
	if r.perSecond == 0 {
		r.perSecond = sample
	}
	r.perSecond += (sample - r.perSecond) / 4
	r.bytes, r.took, r.since = 0, 0, now
	w.limit.Store(min(max(int64(r.perSecond*unflushedTime.Seconds()), unflushedMin), unflushedMax))
}

// has reports that a file has something in the page cache that no flush of the whole file was
// given.
func (w *writeback) has(f *File) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(f.pieces.bytes) > 0
}

// take hands what a file has in the page cache to a flush of the whole file.
func (w *writeback) take(f *File) (bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range f.pieces.bytes {
		bytes += n
	}
	clear(f.pieces.bytes)
	return bytes
}

// flushed is the end of that flush, whatever came of it.
func (w *writeback) flushed(bytes int64) {
	if bytes > 0 {
		w.mu.Lock()
		w.ended(bytes)
		w.mu.Unlock()
	}
}

// writeOut writes a range of a file to the disk and waits for it. Unlike Sync it neither writes
// what is needed to find the data again nor empties the disk's own cache: it makes room, no
// promise. A failure is final, as for Sync: the kernel reports a lost page once, and it has just
// done so (R12).
func (f *File) writeOut(off, length int64) error {
	err := f.writeRange(off, length)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		f.s.fail(err)
	}
	return err
}

func (f *File) writeRange(off, length int64) error {
	if err := f.s.fault(FaultWriteback, f.path, off, length); err != nil {
		return classify("writeback", f.path, err)
	}
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := f.control(func(fd int) error { return unix.SyncFileRange(fd, off, length, all) })
	switch {
	case err == nil, errors.Is(err, os.ErrClosed):
		return err
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESPIPE), errors.Is(err, unix.EPERM):
		if err := f.control(unix.Fdatasync); err != nil { // a kernel or a seccomp profile without the call
			return fmt.Errorf("writeback of %s: %w", f.path, err)
		}
		return nil
	}
	return classify("writeback", f.path, err)
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
