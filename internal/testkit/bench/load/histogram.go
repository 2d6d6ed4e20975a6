package load

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Histogram counts latencies in buckets whose width is 1/32 of their value: a quantile is right to
// about 3 %. It may be written by several goroutines at once and is read when they have stopped.
type Histogram struct {
	buckets [bucketCount]atomic.Int64
	longest atomic.Int64
	sum     atomic.Int64
	count   atomic.Int64
}

const (
	subBits     = 5
	bucketCount = (64 - subBits) << subBits
)

// bucketOf numbers the buckets: values below 32 ns have one each, then 32 for each doubling.
func bucketOf(ns int64) int {
	v := uint64(max(ns, 0))
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - 1<<subBits
}

// upperEnd is the largest value of a bucket.
func upperEnd(bucket int) int64 {
	if bucket < 1<<subBits {
		return int64(bucket)
	}
	shift := bucket>>subBits - 1
	return (int64(bucket&(1<<subBits-1))+1<<subBits+1)<<shift - 1
}

// Add counts one operation.
func (h *Histogram) Add(d time.Duration) {
	h.buckets[bucketOf(int64(d))].Add(1)
	h.sum.Add(int64(d))
	h.count.Add(1)
	for old := h.longest.Load(); int64(d) > old && !h.longest.CompareAndSwap(old, int64(d)); old = h.longest.Load() {
	}
}

// Merge adds what another one has counted.
func (h *Histogram) Merge(o *Histogram) {
	for i := range o.buckets {
		if n := o.buckets[i].Load(); n != 0 {
			h.buckets[i].Add(n)
		}
	}
	h.sum.Add(o.sum.Load())
	h.count.Add(o.count.Load())
	h.longest.Store(max(h.longest.Load(), o.longest.Load()))
}

// Quantile is the smallest latency that the share q of all operations did not exceed, 0 without
// operations.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank, seen := int64(q*float64(h.count.Load())), int64(0)
	for i := range h.buckets {
		if seen += h.buckets[i].Load(); seen > rank {
			return min(time.Duration(upperEnd(i)), h.Longest())
		}
	}
	return h.Longest()
}

// Longest is the longest latency, exact.
func (h *Histogram) Longest() time.Duration { return time.Duration(h.longest.Load()) }

// Mean is the mean latency, exact, 0 without operations.
func (h *Histogram) Mean() time.Duration {
	if n := h.count.Load(); n != 0 {
		return time.Duration(h.sum.Load() / n)
	}
	return 0
}

// Count is the number of operations.
func (h *Histogram) Count() int64 { return h.count.Load() }
