package store

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/extents"
)

// places are the images over which the extents of a LUN are spread, by number of the volume, the
// home's among them. What a File does to its data goes through here: each part to the image in
// which its extent lies. Names, births and sizes are the home image's.
type places struct {
	m      *extents.Map
	spread *extents.Spread
	images map[uint8]*image
	order  []*image // by number
	lost   error    // why the data of the object is not here: then there is nothing else

	v        *BackingVolume
	of       *spreads
	key      string
	refs     int  // Files; under spreads.mu
	nameless bool // its object is deleted; under spreads.mu
}

// place is an image as moves see it.
type place struct{ x *image }

func (p place) ReadAt(b []byte, off int64) error {
	_, err := p.x.read(b, off)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s at %d+%d: %w: the file is shorter than the LUN", p.x.path, off, len(b), ErrMedia)
	}
	return err
}

func (p place) WriteAt(b []byte, off int64) error      { return p.x.writeRaw(b, off) }
func (p place) Punch(off, length int64) error          { return p.x.discardRaw(off, length) }
func (p place) Sync() error                            { return p.x.Sync() }
func (p place) Data(off, n int64) (int64, bool, error) { return p.x.extents(off, n) }

// build makes the spread, when there are a map and all images.
func (p *places) build(f *File, size int64) (err error) {
	all := map[uint8]extents.Image{}
	for _, n := range slices.Sorted(maps.Keys(p.images)) {
		all[n] = place{p.images[n]}
		p.order = append(p.order, p.images[n])
	}
	p.spread, err = extents.NewSpread(p.m, all, size, extents.Config{NoSpace: func(err error) bool { return errors.Is(err, ErrNoSpace) }})
	return err
}

// each calls fn for the parts of a range with the image in which each lies.
func (f *File) each(off, length int64, fn func(x *image, off, length int64) error) error {
	switch {
	case f.places == nil:
		return fn(f.image, off, length)
	case f.places.lost != nil:
		return f.places.lost
	}
	return f.places.spread.Read(off, length, func(x extents.Image, off, length int64) error {
		return fn(x.(place).x, off, length)
	})
}

// eachChange is each for what changes the range: of an extent that moves, fn is called for its new
// place as well.
func (f *File) eachChange(off, length int64, fn func(x *image, off, length int64) error) error {
	switch {
	case f.places == nil:
		return fn(f.image, off, length)
	case f.places.lost != nil:
		return f.places.lost
	}
	return f.places.spread.Change(off, length, func(x extents.Image, off, length int64) error {
		return fn(x.(place).x, off, length)
	})
}

// readImage reads all of p from one image.
func (f *File) readImage(x *image, p []byte, off int64) error {
	n, err := x.read(p, off)
	if errors.Is(err, io.EOF) {
		if f.obj != nil && off >= 0 && off+int64(len(p)) <= f.obj.size.Load() {
			clear(p[n:]) // the image was cut: the checksums tell what that has lost
			return nil
		}
		return fmt.Errorf("read %s at %d+%d: %w", x.path, off, len(p), ErrRange)
	}
	return err
}

func (f *File) writeRaw(p []byte, off int64) error {
	if f.places == nil {
		return f.image.writeRaw(p, off)
	}
	return f.withRoom(off, int64(len(p)), func() error {
		return f.eachChange(off, int64(len(p)), func(x *image, at, n int64) error { return x.writeRaw(p[at-off:][:n], at) })
	})
}

func (f *File) discardRaw(off, length int64) error {
	return f.withRoom(off, length, func() error {
		return f.eachChange(off, length, func(x *image, off, n int64) error { return x.discardRaw(off, n) })
	})
}

// writeDurableRaw writes through what lies in two places, or moves: a write that joins others is in
// the page cache of one place when they are flushed.
func (f *File) writeDurableRaw(d *Durable) error {
	switch {
	case f.places == nil:
		return f.image.writeDurableRaw(d)
	case f.places.lost != nil:
		return f.places.lost
	}
	done, err := f.places.spread.Place(d.Off, int64(len(d.P)), func(x extents.Image) error { return x.(place).x.writeDurableRaw(d) })
	if done && !errors.Is(err, ErrNoSpace) {
		return err
	}
	return f.withRoom(d.Off, int64(len(d.P)), func() error {
		return f.eachChange(d.Off, int64(len(d.P)), func(x *image, at, n int64) error { return x.writeThrough(d.P[at-d.Off:][:n], at) })
	})
}

// Sync makes everything durable that was written before the call, in all places.
func (f *File) Sync() error {
	if f.places == nil {
		return f.image.Sync()
	}
	errs := make([]error, len(f.places.order))
	var wg sync.WaitGroup
	for i, x := range f.places.order {
		wg.Go(func() { errs[i] = x.Sync() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// extents is that of an image, over all parts: a run goes on in the next extent.
func (f *File) extents(off, length int64) (run int64, data bool, err error) {
	if f.places == nil {
		return f.image.extents(off, length)
	}
	errEnd := errors.New("the run ends")
	err = f.each(off, length, func(x *image, at, n int64) error {
		r, d, err := x.extents(at, n)
		switch {
		case err != nil:
			return err
		case run > 0 && d != data:
			return errEnd
		}
		data = d
		if run += r; r < n {
			return errEnd
		}
		return nil
	})
	if errors.Is(err, errEnd) {
		err = nil
	}
	return run, data, err
}

func (f *File) isHole(off, length int64) (hole bool, err error) {
	hole = true
	err = f.each(off, length, func(x *image, off, n int64) error {
		h, err := x.isHole(off, n)
		hole = hole && h
		return err
	})
	return hole, err
}

// writeOut has a range written to the disks, and waits.
func (f *File) writeOut(off, length int64) (whole bool, err error) {
	err = f.each(off, length, func(x *image, off, n int64) error {
		w, err := x.writeOut(off, n)
		whole = whole || w
		return err
	})
	return whole, err
}

// Allocated is what the LUN occupies in all its volumes. Extents shared by reflink are counted in
// every sharer.
func (f *File) Allocated() (sum int64, err error) {
	if f.places == nil {
		return f.image.Allocated()
	}
	for _, x := range f.places.order {
		n, err := x.Allocated()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// follow has what is not written yet of an extent lie where another file has it, so that extents
// can be shared.
func (f *File) follow(off int64, volume uint8) error {
	switch {
	case f.places == nil:
		return nil
	case f.places.lost != nil:
		return f.places.lost
	}
	return f.places.spread.Adopt(off/extents.Size, volume)
}

// willNeed has the disks begin to read a range.
func (f *File) willNeed(off, length int64) {
	_ = f.each(off, length, func(x *image, off, n int64) error {
		return x.control(func(fd int) error { return unix.Fadvise(fd, off, n, unix.FADV_WILLNEED) })
	})
}

// truncate makes all places so long. The length of the home image is that of the LUN, so it is the
// last to become longer and the first to become shorter, durably: after a crash none is shorter
// than that one but for what was done to it from outside.
func (f *File) truncate(from, size int64) error {
	switch p := f.places; {
	case p == nil:
		return f.f.Truncate(size)
	case p.lost != nil:
		return p.lost
	case size > from:
		if err := p.truncate(size); err != nil {
			return err
		}
		err := f.f.Truncate(size)
		if err == nil {
			p.spread.Resize(size)
		}
		return err
	default:
		err := f.f.Truncate(size)
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return err
		}
		return p.truncate(size)
	}
}

func (p *places) truncate(size int64) error {
	from := p.m.Extents()
	if err := p.m.Grow(size); err != nil {
		return err
	}
	if err := p.avoid(from); err != nil {
		return err
	}
	for _, x := range p.order {
		if x.number == homeNumber {
			continue
		}
		if err := x.f.Truncate(size); err != nil {
			return err
		}
		if err := x.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// avoid gives new extents, from one on, other places than those that are drained or gone, where the
// rule names such a place. Nothing is written to them yet.
func (p *places) avoid(from int64) error {
	rule, move := p.v.rule(), map[uint8][]int64{}
	for e := from; e < p.m.Extents(); e++ {
		if !slices.Contains(rule, p.m.At(e)) {
			to := rule[e%int64(len(rule))]
			move[to] = append(move[to], e)
		}
	}
	for to, list := range move {
		if err := p.m.Set(list, to); err != nil {
			return err
		}
	}
	return nil
}

// cachedPlaces reads p if the page cache has all of it.
func (f *File) cachedPlaces(p []byte, off int64) bool {
	if f.places == nil {
		return f.image.cachedRead(p, off)
	}
	return f.places.lost == nil && f.places.spread.TryRead(off, int64(len(p)), func(x extents.Image, at, n int64) bool {
		return x.(place).x.cachedRead(p[at-off:][:n], at)
	})
}

// tryWrite writes p if that waits for nothing.
func (f *File) tryWrite(p []byte, off int64) bool {
	if f.places == nil {
		return f.image.tryWrite(p, off)
	}
	return f.places.lost == nil && f.places.spread.TryChange(off, int64(len(p)), func(x extents.Image, off, _ int64) bool {
		return x.(place).x.tryWrite(p, off)
	})
}

// closePlaces is the end of a File's use of its places.
func (f *File) closePlaces() error {
	p := f.places
	if p == nil || f.left.Swap(true) {
		return nil
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.refs--; p.refs > 0 {
		return nil
	}
	if !p.nameless {
		delete(p.of.all, p.key)
	}
	return p.close()
}

func (p *places) close() (err error) {
	if p.m != nil {
		err = p.m.Close()
	}
	for _, x := range p.images {
		err = errors.Join(err, x.close())
	}
	return err
}
