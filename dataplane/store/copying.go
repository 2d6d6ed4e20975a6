package store

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// A Copy makes an object into what another one was at one instant, and the instant costs nothing:
// from then on a write to the source first has the pieces that it changes copied, and Run copies
// the others in the background. What is read of the copy before it is complete is copied first.
//
// Nothing of it is durable before Run has ended. A copy that a crash interrupts, of the process or
// of the machine, is therefore worth nothing: its file has holes where nothing was copied yet, and
// the source has been written to since. The caller that finds one starts over
// (docs/decisions/0069).

// Errors of copies.
var (
	// ErrCopying: the source has a copy that is not complete yet, or is one itself.
	ErrCopying = errors.New("a copy of this object is not complete yet")
	// ErrCopyFailed: a copy was given up, for lack of space or since its source could not be read.
	// Its content is not what it should be, and never will be.
	ErrCopyFailed = errors.New("the copy has failed")
	// ErrCopyDropped: a copy was stopped, because it is not needed any more.
	ErrCopyDropped = errors.New("it is not needed any more")
)

const (
	// copyPiece is what is copied at least, in bytes: what the first write to a piece waits for. A
	// longer one costs more of that write, a shorter one memory (a bit each) and extents of the
	// copy.
	copyPiece = 16 << 10
	// copyRegion has one word of pieces.
	copyRegion = 64 * copyPiece
	// shareTime is how long one request to share extents should take: it locks the source as a
	// whole, so every read and write of it waits that long. The length of the next one is halved
	// above it, and grows by a quarter below a quarter of it.
	shareTime = 2 * time.Millisecond
	// restShare is what part of the time that Run has kept changes of the source waiting it rests
	// afterwards, so that all of those go on that have come meanwhile. A longer rest costs hosts
	// more, not less: the longer a copy takes, the more first writes there are, and each costs more
	// than its part of a request.
	restShare = 4
)

// Copy is under way until it is complete, has failed, or is dropped. Methods are safe for
// concurrent use.
type Copy struct {
	src, dst *File
	size     int64 // bytes
	there    []atomic.Uint64
	began    time.Time

	written atomic.Uint64 // changes of the source that came while this was not complete
	done    atomic.Int64  // bytes that are there
	saved   atomic.Int64  // of them: copied since they were about to be changed, or were read
	locked  time.Duration // of Run alone: how long the source was locked in its last step

	mu    sync.Mutex
	moved *sync.Cond
	busy  map[int]uint64 // pieces that are being copied, by region
	over  bool
	err   error // over: why it is not complete
}

// CopyTo makes dst, which is empty, a copy of the first size bytes of f, as they are now. The
// caller keeps writes away during this call, which needs no disk and little time, and flushes
// nothing for it. One copy of f at a time is incomplete; otherwise ErrCopying. Beyond size dst
// stays as it is.
//
// still says that f never changes: it is a snapshot, and may have any number of incomplete copies.
func (f *File) CopyTo(dst *File, size int64, still bool) (*Copy, error) {
	for _, x := range []*File{f, dst} {
		switch is, err := x.Size(); {
		case err != nil:
			return nil, err
		case is < size:
			return nil, fmt.Errorf("copy of %d bytes from %s to %s, which has %d: %w", size, f.path, x.path, is, ErrRange)
		}
	}
	if f.in.Load() != nil {
		return nil, fmt.Errorf("copy of %s: %w", f.path, ErrCopying)
	}
	c := &Copy{src: f, dst: dst, size: size, there: make([]atomic.Uint64, (size+copyRegion-1)/copyRegion), busy: map[int]uint64{}, began: time.Now()}
	c.moved = sync.NewCond(&c.mu)
	// dst first: no read may find the holes of a copy that its source already has.
	if !dst.in.CompareAndSwap(nil, c) {
		return nil, fmt.Errorf("copy to %s: %w", dst.path, ErrCopying)
	}
	if !still && !f.out.CompareAndSwap(nil, c) {
		dst.in.Store(nil)
		return nil, fmt.Errorf("copy of %s: %w", f.path, ErrCopying)
	}
	return c, nil
}

// copyPieces are the pieces of a region that a range touches. The range is in bytes from the
// beginning of the region.
func copyPieces(from, to int64) uint64 { return mask(0, from/copyPiece, (to+copyPiece-1)/copyPiece) }

// whole is all pieces of a region.
func (c *Copy) whole(region int) uint64 {
	return copyPieces(0, min(copyRegion, c.size-int64(region)*copyRegion))
}

// keep copies what a range has before the source changes there. It cannot fail: what cannot be
// copied fails the copy, and never a write.
func (c *Copy) keep(off, length int64) {
	c.written.Add(1)
	_ = c.need(off, length)
}

// way is how pieces are copied.
type way uint8

const (
	byReading    way = iota // and writing: a few of them
	bySharing               // of extents, where the filesystem can
	inBackground            // the same, by Run
)

// need returns when a range of the copy is there.
func (c *Copy) need(off, length int64) error {
	return c.missing(off, length, func(r int, want uint64, bytes int64) error {
		w := byReading
		if bytes >= shareLeast {
			w = bySharing
		}
		return c.bring(r, want, w)
	})
}

// has says whether a range of the copy is there.
func (c *Copy) has(off, length int64) bool {
	return c.missing(off, length, func(int, uint64, int64) error { return errNotThere }) == nil
}

var errNotThere = errors.New("not copied yet")

// missing calls fn for the regions in which a range is not there yet, with the pieces of it and how
// many bytes of the range they are for, until fn fails.
func (c *Copy) missing(off, length int64, fn func(region int, pieces uint64, bytes int64) error) error {
	end := min(off+length, c.size)
	for off = max(off, 0); off < end; {
		r := int(off / copyRegion)
		base := int64(r) * copyRegion
		to := min(end, base+copyRegion)
		if want := copyPieces(off-base, to-base); c.there[r].Load()&want != want {
			if err := fn(r, want, to-off); err != nil {
				return err
			}
		}
		off = to
	}
	return nil
}

// shareLeast is from how many bytes on it is cheaper to share extents than to read and write them.
const shareLeast = 1 << 20

// bring copies the pieces of a region that are not there yet, or waits for those who do.
func (c *Copy) bring(region int, want uint64, w way) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		missing := want &^ c.there[region].Load()
		switch {
		case missing == 0:
			return nil
		case c.over:
			return c.failure()
		}
		free := missing &^ c.busy[region]
		if free == 0 {
			c.moved.Wait()
			continue
		}
		run := firstRun(free)
		c.busy[region] |= run
		c.mu.Unlock()
		off, length := c.span(region, run)
		err := c.move(off, length, w)
		c.mu.Lock()
		if c.busy[region] &^= run; c.busy[region] == 0 {
			delete(c.busy, region)
		}
		if err == nil {
			c.there[region].Or(run)
			if c.done.Add(length); w != inBackground {
				c.saved.Add(length)
			}
		} else if !c.over {
			c.end(err)
		}
		c.moved.Broadcast()
	}
}

// firstRun is the first run of bits that are set.
func firstRun(x uint64) uint64 {
	at := bits.TrailingZeros64(x)
	n := bits.TrailingZeros64(^(x >> at))
	return mask(0, int64(at), int64(at+n))
}

// span is the range, in bytes, of a run of pieces.
func (c *Copy) span(region int, run uint64) (off, length int64) {
	off = int64(region)*copyRegion + int64(bits.TrailingZeros64(run))*copyPiece
	return off, min(int64(bits.OnesCount64(run))*copyPiece, c.size-off)
}

// failure is what a read of a copy gets that will never be complete. mu is held.
func (c *Copy) failure() error {
	if c.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", c.dst.path, ErrCopyFailed, c.err)
}

// end is that of the copy; nil: it is complete. A copy that has failed stays in the way of those
// who read it, until it is dropped. mu is held.
func (c *Copy) end(err error) {
	c.over, c.err = true, err
	c.src.out.CompareAndSwap(c, nil)
	if err == nil {
		c.dst.in.CompareAndSwap(c, nil)
	}
	c.moved.Broadcast()
}

// Run copies what is not there yet and returns when all of it is durable, or why it never will be:
// ErrCopyFailed. ctx ends it early, and the copy continues to be incomplete. While the source is
// being written to, it rests in between. It is called once.
func (c *Copy) Run(ctx context.Context) error {
	step := 16 // pieces
	seen := c.written.Load()
	for r := range c.there {
		for {
			missing := c.whole(r) &^ c.there[r].Load()
			if missing == 0 {
				break
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("copy of %s: %w", c.src.path, err)
			}
			run := firstRun(missing)
			if bits.OnesCount64(run) > step {
				at := int64(bits.TrailingZeros64(run))
				run = mask(0, at, at+int64(step))
			}
			locked, err := c.step(r, run)
			if err != nil {
				return err
			}
			switch {
			case locked > shareTime:
				step = max(step/2, 1)
			case locked < shareTime/4:
				step = min(step+step/4+1, 64)
			}
			if now := c.written.Load(); now != seen {
				seen = now
				if err := rest(ctx, locked/restShare); err != nil {
					return fmt.Errorf("copy of %s: %w", c.src.path, err)
				}
			}
		}
	}
	return c.seal()
}

// step copies pieces for Run, and says how long changes of the source had to wait. Copies of one
// backing volume take turns: side by side each would take longer, and hosts would get less.
func (c *Copy) step(region int, run uint64) (time.Duration, error) {
	if c.src.shares() {
		if err := c.clean(region, run); err != nil {
			return 0, c.finish(err)
		}
	}
	c.src.wb.copying.Lock()
	defer c.src.wb.copying.Unlock()
	c.locked = 0
	begun := time.Now()
	err := c.bring(region, run, inBackground)
	if c.src.shares() {
		return c.locked, err
	}
	return time.Since(begun), err
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// seal makes a copy durable of which all is there.
func (c *Copy) seal() error {
	err := c.dst.Checkpoint()
	return c.finish(err)
}

// finish ends a copy, unless it has ended, and returns what became of it.
func (c *Copy) finish(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.end(err)
	}
	return c.failure()
}

// Stop ends a copy that is not complete: what is under way ends by itself.
func (c *Copy) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.end(ErrCopyDropped)
	}
}

// Drop is Stop that returns when nothing of the copy touches its file any more. The file is an
// ordinary one from then on, whose content is not what it should be.
func (c *Copy) Drop() {
	c.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.busy) > 0 {
		c.moved.Wait()
	}
	c.dst.in.CompareAndSwap(c, nil)
}

// CopyState is how far a copy is.
type CopyState struct {
	Done, Total int64 // bytes
	Saved       int64 // of Done: copied since they were about to be changed, or were read
	Complete    bool
	Err         error // it has failed, or was dropped
}

// State reads it.
func (c *Copy) State() CopyState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CopyState{Done: c.done.Load(), Total: c.size, Saved: c.saved.Load(), Complete: c.over && c.err == nil, Err: c.err}
}
