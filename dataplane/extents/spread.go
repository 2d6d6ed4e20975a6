package extents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
)

// Image is the file of a LUN in one volume, as long as the LUN. Offsets and lengths are bytes.
type Image interface {
	ReadAt(p []byte, off int64) error
	WriteAt(p []byte, off int64) error // into the page cache
	Punch(off, length int64) error     // it reads as zero after, and takes no space
	Sync() error                       // what was written and punched before is durable
	// Data looks at the range: how long the run is that begins at off, and whether it is data.
	Data(off, length int64) (run int64, data bool, err error)
}

// Spread is a LUN whose extents lie in the images of several volumes. What hosts do goes to the
// place of each extent (Read, Change); Move changes the place meanwhile. Methods are safe for
// concurrent use; the order of requests for the same blocks is the caller's.
type Spread struct {
	m      *Map
	images [256]Image // by number of the volume
	named  []uint8    // the numbers of those that there are
	size   atomic.Int64
	locks  locks
	cfg    Config
}

// Config is what moves need from the caller.
type Config struct {
	// NoSpace tells an error of an image that says only that its volume is full.
	NoSpace func(error) bool
	// Pace is called after each piece of a move, without a lock, with its length; nil: no pause.
	Pace func(ctx context.Context, bytes int64) error
}

// Errors of moves.
var (
	// ErrMoving: the extent is being moved already.
	ErrMoving = errors.New("the extent is being moved")
	// ErrNoVolume: the LUN has no image in the volume.
	ErrNoVolume = errors.New("the LUN has no image in the volume")
	// ErrTargetFull: the volume has no room for the extent, which stays where it is.
	ErrTargetFull = errors.New("the volume has no room for the extent")
	// ErrSpoilt: a change has failed at the old place while the extent was moved. What of it has
	// taken effect is not at the new place.
	ErrSpoilt = errors.New("a write to the extent has failed while it was moved")
)

// piece is how much of an extent is copied at once, in bytes.
const piece = 256 << 10

// move is one that is under way.
type move struct {
	from, to uint8
	like     bool                  // the new place had content when the move began
	changes  atomic.Uint64         // of the extent that have ended
	lost     atomic.Pointer[error] // why it cannot end well
}

func (mv *move) fail(err error) { mv.lost.CompareAndSwap(nil, &err) }

// failed is why; nil: it has not.
func (mv *move) failed() error {
	if err := mv.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// NewSpread is of a LUN of size bytes, with an image in each volume that the map names.
func NewSpread(m *Map, images map[uint8]Image, size int64, cfg Config) (*Spread, error) {
	s := &Spread{m: m, cfg: cfg, named: slices.Sorted(maps.Keys(images))}
	s.size.Store(size)
	for v, x := range images {
		s.images[v] = x
	}
	if Extents(size) > m.Extents() {
		return nil, fmt.Errorf("map of extents %s: it has %d extents, the LUN %d", m.path, m.Extents(), Extents(size))
	}
	for e := range Extents(size) {
		if s.images[m.At(e)] == nil {
			return nil, fmt.Errorf("%w with number %d, where the map %s has extent %d", ErrNoVolume, m.At(e), m.path, e)
		}
	}
	return s, nil
}

// parts calls fn for each part of a range that lies in one extent.
func parts(off, length int64, fn func(extent, off, length int64) error) error {
	for end := off + length; off < end; {
		e := off / Size
		n := min(end, (e+1)*Size) - off
		if err := fn(e, off, n); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// Read calls fn for the parts of a range, in order, with the image in which each lies. The extent
// stays there until fn returns.
func (s *Spread) Read(off, length int64, fn func(x Image, off, length int64) error) error {
	return parts(off, length, func(extent, off, length int64) error {
		b := s.locks.of(extent)
		b.share()
		defer b.unshare()
		return fn(s.images[s.m.At(extent)], off, length)
	})
}

// Change calls fn as Read does, for whatever changes the range; of an extent that is being moved
// also for the part at its new place, after the old one. What the new place refuses for lack of
// space ends the move, and not the change.
func (s *Spread) Change(off, length int64, fn func(x Image, off, length int64) error) error {
	return parts(off, length, func(extent, off, length int64) error {
		b := s.locks.of(extent)
		b.share()
		defer b.unshare()
		mv := b.moves[extent]
		if mv != nil {
			defer mv.changes.Add(1) // before the lock is given back
		}
		err := fn(s.images[s.m.At(extent)], off, length)
		switch {
		case mv == nil || mv.failed() != nil:
			return err
		case err != nil:
			mv.fail(fmt.Errorf("%w: %w", ErrSpoilt, err))
			return err
		}
		err = fn(s.images[mv.to], off, length)
		if err != nil && s.noSpace(err) {
			mv.fail(fmt.Errorf("%w: %w", ErrTargetFull, err))
			return nil
		}
		return err
	})
}

// Place calls fn with the image in which a range lies that is in one extent, while that is not
// being moved, and returns true; otherwise false, without a call. What fn has written into the page
// cache is durable after any later Sync of that image, also if the extent has moved by then: a move
// has flushed it in its new place.
func (s *Spread) Place(off, length int64, fn func(x Image) error) (bool, error) {
	extent := off / Size
	if length <= 0 || (off+length-1)/Size != extent {
		return false, nil
	}
	b := s.locks.of(extent)
	b.share()
	defer b.unshare()
	if b.moves[extent] != nil {
		return false, nil
	}
	return true, fn(s.images[s.m.At(extent)])
}

func (s *Spread) noSpace(err error) bool { return s.cfg.NoSpace != nil && s.cfg.NoSpace(err) }

// Sync makes all earlier changes durable, at the new places of extents that are being moved as
// well.
func (s *Spread) Sync() error {
	for _, v := range s.named {
		if err := s.images[v].Sync(); err != nil {
			return err
		}
	}
	return nil
}

// span is the range of an extent.
func (s *Spread) span(extent int64) (off, length int64) {
	return extent * Size, min(Size, s.size.Load()-extent*Size)
}

// Resize is for a LUN that has become longer, in all its images, whose map has grown.
func (s *Spread) Resize(size int64) { s.size.Store(size) }

// TryRead is Read that waits for no move: false if one of the extents is being changed, or fn says
// so.
func (s *Spread) TryRead(off, length int64, fn func(x Image, off, length int64) bool) bool {
	return parts(off, length, func(extent, off, length int64) error {
		b := s.locks.of(extent)
		if !b.tryShare() {
			return errBusy
		}
		defer b.unshare()
		if !fn(s.images[s.m.At(extent)], off, length) {
			return errBusy
		}
		return nil
	}) == nil
}

// TryChange is Change that waits for no move, of a range in one extent that is not being moved;
// false otherwise, or if fn says so.
func (s *Spread) TryChange(off, length int64, fn func(x Image, off, length int64) bool) bool {
	extent := off / Size
	if length <= 0 || (off+length-1)/Size != extent {
		return false
	}
	b := s.locks.of(extent)
	if !b.tryShare() {
		return false
	}
	defer b.unshare()
	return b.moves[extent] == nil && fn(s.images[s.m.At(extent)], off, length)
}

var errBusy = errors.New("the extent is being changed")
