// Package stripe is the layout of striped volumes: one volume over several LUNs of the same size,
// its legs. Stripe k of the volume is stripe k/n of leg k mod n, as in the kernel's device-mapper
// target "striped" (Documentation/admin-guide/device-mapper/striped.rst). Nothing of the layout is
// on the device itself, so what assembles the volume has to know count, stripe size and the
// order of the legs.
package stripe

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"strings"
)

// Limits of a layout. A stripe is no larger than the unit in which LUNs are sized, so any leg ends
// with a whole stripe.
const (
	MinCount  = 2
	MaxCount  = 16
	MinStripe = 64 << 10 // bytes
	MaxStripe = 1 << 20  // bytes
)

const sector = 512 // bytes: the unit of device-mapper tables, whatever the block size of the device

// Errors of a layout. The text says which limit is meant.
var (
	ErrCount  = fmt.Errorf("a striped volume has %d to %d LUNs", MinCount, MaxCount)
	ErrStripe = fmt.Errorf("a stripe is a power of two from %d to %d bytes", MinStripe, MaxStripe)
	ErrSize   = errors.New("the size is not a multiple of the stripes of all LUNs")
)

// Layout of a striped volume.
type Layout struct {
	Count int   // legs
	Size  int64 // bytes of a stripe
}

// Default is the layout for a number of LUNs without a wish for the size of a stripe: a request of
// 1 MiB, the largest that hosts usually make, is spread over all of them.
func Default(count int) Layout {
	size := int64(MaxStripe)
	if count > 1 {
		size = max(MinStripe, int64(1)<<(bits.Len64(uint64(MaxStripe/int64(count)))-1))
	}
	return Layout{count, size}
}

// IOPSPerLUN is what one LUN is taken to do: 32 requests may be in flight for a LUN of open-iscsi,
// and where each of them takes 0.64 ms, which is long for a busy pair that reads from memory, those
// are 50,000 a second.
const IOPSPerLUN = 50_000

// ForIOPS is how many LUNs a volume needs for so many operations a second, at least 1: one for each
// IOPSPerLUN, and an even number of them, so that each node of a pair serves half. Above MaxCount
// there is no such volume.
func ForIOPS(n int) int {
	count := (n + IOPSPerLUN - 1) / IOPSPerLUN
	if count > 1 {
		count += count % 2
	}
	return max(count, 1)
}

// String says the layout in words; Count 0 is one LUN.
func (l Layout) String() string {
	if l.Count == 0 {
		return "one LUN"
	}
	return fmt.Sprintf("%d LUNs and stripes of %d bytes", l.Count, l.Size)
}

// Check returns ErrCount or ErrStripe.
func (l Layout) Check() error {
	switch {
	case l.Count < MinCount || l.Count > MaxCount:
		return fmt.Errorf("%d LUNs: %w", l.Count, ErrCount)
	case l.Size < MinStripe || l.Size > MaxStripe || l.Size&(l.Size-1) != 0:
		return fmt.Errorf("%d bytes: %w", l.Size, ErrStripe)
	}
	return nil
}

// Leg is the size in bytes of each leg of a volume. ErrSize.
func (l Layout) Leg(volume int64) (int64, error) {
	if row := l.Size * int64(l.Count); volume <= 0 || volume%row != 0 {
		return 0, fmt.Errorf("%d bytes: %w: %d LUNs with stripes of %d bytes", volume, ErrSize, l.Count, l.Size)
	}
	return volume / int64(l.Count), nil
}

// Volume is the size in bytes of a volume whose smallest leg has a size: while a volume is being
// expanded its legs differ.
func (l Layout) Volume(leg int64) int64 { return leg / l.Size * l.Size * int64(l.Count) }

// Part of a range that is in one stripe.
type Part struct {
	Leg int
	Off int64 // in the leg
	At  int64 // from the beginning of the range
	Len int64
}

// Parts of n bytes at off, in their order.
func (l Layout) Parts(off, n int64) iter.Seq[Part] {
	return func(yield func(Part) bool) {
		for at := int64(0); at < n; {
			k, in := (off+at)/l.Size, (off+at)%l.Size
			size := min(l.Size-in, n-at)
			if !yield(Part{int(k % int64(l.Count)), k/int64(l.Count)*l.Size + in, at, size}) {
				return
			}
			at += size
		}
	}
}

// Span of a leg is contiguous.
type Span struct {
	Leg      int
	Off, Len int64
}

// Spans are what a range of n bytes at off is on the legs that have a part of it: the stripes of a
// leg follow each other, so a request without data is one request to each leg.
func (l Layout) Spans(off, n int64) (out []Span) {
	if n <= 0 {
		return nil
	}
	first, last := off/l.Size, (off+n-1)/l.Size
	count := int64(l.Count)
	for leg := range count {
		// The first and the last stripe of this leg that the range touches.
		a, b := first+((leg-first)%count+count)%count, last-((last-leg)%count+count)%count
		if a > b {
			continue
		}
		begin, end := a/count*l.Size, (b/count+1)*l.Size
		if a == first {
			begin += off % l.Size
		}
		if b == last {
			end -= l.Size - 1 - (off+n-1)%l.Size
		}
		out = append(out, Span{int(leg), begin, end - begin})
	}
	return out
}

// Table is the line of a device-mapper table that assembles a volume of a size in bytes from the
// devices of its legs, in their order: paths, or major:minor.
func (l Layout) Table(volume int64, devices []string) (string, error) {
	if err := l.Check(); err != nil {
		return "", err
	}
	if len(devices) != l.Count {
		return "", fmt.Errorf("%d devices for %d LUNs", len(devices), l.Count)
	}
	if _, err := l.Leg(volume); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0 %d striped %d %d", volume/sector, l.Count, l.Size/sector)
	for _, d := range devices {
		fmt.Fprintf(&b, " %s 0", d)
	}
	return b.String(), nil
}
