// Package striped makes one block device out of several: the legs of a striped volume, in the
// layout of package stripe.
package striped

import (
	"context"
	"fmt"
	"sync"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/stripe"
)

// Leg is the device of one LUN. *initiator.Device is one.
type Leg interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	WriteAt(ctx context.Context, p []byte, off int64) (int, error)
	Flush(ctx context.Context) error
	Discard(ctx context.Context, off, n int64) error
	WriteZeroes(ctx context.Context, off, n int64, mayUnmap bool) error
	Rescan(ctx context.Context) (size int64, err error)
	Size() int64
	BlockSize() int
}

// Volume is a striped volume. Its methods are safe for concurrent use if those of its legs are.
// Each request is sent to all legs that have a part of it at once, and ends when all of them have
// answered; its error is that of the first leg, in their order, that failed, and names the leg.
type Volume struct {
	layout stripe.Layout
	legs   []Leg
	block  int
}

// New assembles a volume from all of its legs, in their order. That each leg is the right LUN is
// for the caller to verify: nothing on the devices tells.
func New(layout stripe.Layout, legs []Leg) (*Volume, error) {
	if err := layout.Check(); err != nil {
		return nil, fmt.Errorf("striped: %w", err)
	}
	if len(legs) != layout.Count {
		return nil, fmt.Errorf("striped: %d legs for a volume of %d LUNs", len(legs), layout.Count)
	}
	v := &Volume{layout: layout, legs: legs}
	for i, l := range legs {
		if l.Size() < layout.Size {
			return nil, fmt.Errorf("striped: leg %d has %d bytes, which is less than a stripe", i, l.Size())
		}
		v.block = max(v.block, l.BlockSize())
	}
	return v, nil
}

// Size in bytes: as much as all legs have room for. While the volume is being expanded they
// differ, and what the larger legs have more is not used yet.
func (v *Volume) Size() int64 {
	least := v.legs[0].Size()
	for _, l := range v.legs[1:] {
		least = min(least, l.Size())
	}
	return v.layout.Volume(least)
}

// BlockSize is the largest logical block of a leg in bytes.
func (v *Volume) BlockSize() int { return v.block }

// Rescan reads the capacity of every leg again, and returns the size of the volume.
func (v *Volume) Rescan(ctx context.Context) (int64, error) {
	err := v.each(func(l Leg) error {
		_, err := l.Rescan(ctx)
		return err
	})
	return v.Size(), err
}

// ReadAt reads len(p) bytes at off. It is all or nothing.
func (v *Volume) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return v.transfer(p, off, func(l Leg, p []byte, off int64) error {
		_, err := l.ReadAt(ctx, p, off)
		return err
	})
}

// WriteAt writes p at off. After an error any part may have been written.
func (v *Volume) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	return v.transfer(p, off, func(l Leg, p []byte, off int64) error {
		_, err := l.WriteAt(ctx, p, off)
		return err
	})
}

// Flush makes every write that has returned durable, on all legs.
func (v *Volume) Flush(ctx context.Context) error {
	return v.each(func(l Leg) error { return l.Flush(ctx) })
}

// Discard tells the targets that a range is unused.
func (v *Volume) Discard(ctx context.Context, off, n int64) error {
	return v.spans(off, n, func(l Leg, s stripe.Span) error { return l.Discard(ctx, s.Off, s.Len) })
}

// WriteZeroes makes a range read as zeroes; mayUnmap allows the targets to free its space.
func (v *Volume) WriteZeroes(ctx context.Context, off, n int64, mayUnmap bool) error {
	return v.spans(off, n, func(l Leg, s stripe.Span) error { return l.WriteZeroes(ctx, s.Off, s.Len, mayUnmap) })
}

func (v *Volume) check(off, n int64) error {
	if size := v.Size(); off < 0 || n < 0 || off > size-n {
		return fmt.Errorf("striped: %d bytes at %d of %d: %w", n, off, size, initiator.ErrBeyondEnd)
	}
	return nil
}

// transfer runs a request with data: one at a leg for each stripe, because the stripes of one leg
// are apart in the buffer.
func (v *Volume) transfer(p []byte, off int64, f func(l Leg, p []byte, off int64) error) (int, error) {
	if err := v.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	var parts []stripe.Part
	for x := range v.layout.Parts(off, int64(len(p))) {
		parts = append(parts, x)
	}
	err := v.together(len(parts), func(i int) int { return parts[i].Leg }, func(i int, l Leg) error {
		x := &parts[i]
		return f(l, p[x.At:x.At+x.Len:x.At+x.Len], x.Off)
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (v *Volume) spans(off, n int64, f func(l Leg, s stripe.Span) error) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	spans := v.layout.Spans(off, n)
	return v.together(len(spans), func(i int) int { return spans[i].Leg }, func(i int, l Leg) error { return f(l, spans[i]) })
}

// each runs a request at all legs.
func (v *Volume) each(f func(l Leg) error) error {
	return v.together(len(v.legs), func(i int) int { return i }, func(_ int, l Leg) error { return f(l) })
}

// together runs n parts of a request at once, and waits for all of them: their buffers are the
// caller's again after that.
func (v *Volume) together(n int, leg func(i int) int, f func(i int, l Leg) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := 1; i < n; i++ {
		wg.Go(func() { errs[i] = f(i, v.legs[leg(i)]) })
	}
	if n > 0 {
		errs[0] = f(0, v.legs[leg(0)])
	}
	wg.Wait()
	first := -1
	for i, err := range errs {
		if err != nil && (first < 0 || leg(i) < leg(first)) {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	return fmt.Errorf("leg %d: %w", leg(first), errs[first])
}
