package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBucketsGrowWithTheirValues(t *testing.T) {
	last := -1
	for _, v := range []int64{0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 1000, 1e6, 1e9, math.MaxInt64} {
		b := bucketOf(v)
		if b < last || b >= bucketCount {
			t.Fatalf("%d is in bucket %d after %d", v, b, last)
		}
		if end := upperEnd(b); end < v || float64(end-v) > float64(v)/31+1 {
			t.Errorf("%d is in bucket %d, which ends at %d", v, b, end)
		}
		last = b
	}
}

func TestQuantilesOfMergedHistograms(t *testing.T) {
	var parts [2]Histogram
	rng := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for i := range 20_000 {
		d := time.Duration(rng.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		parts[i%2].Add(d)
	}
	parts[0].Merge(&parts[1])
	h := &parts[0]
	slices.Sort(all)
	for _, q := range []float64{0.5, 0.99, 0.999} {
		want, got := all[int(q*float64(len(all)))], h.Quantile(q)
		if r := float64(got) / float64(want); r < 1 || r > 1.04 {
			t.Errorf("quantile %v is %v, not %v", q, got, want)
		}
	}
	if h.Longest() != all[len(all)-1] || h.Count() != int64(len(all)) || h.Quantile(1) != h.Longest() {
		t.Errorf("longest %v of %d, want %v of %d", h.Longest(), h.Count(), all[len(all)-1], len(all))
	}
	if m := h.Mean(); m < 900*time.Microsecond || m > 1100*time.Microsecond {
		t.Errorf("mean %v", m)
	}
	if empty := new(Histogram); empty.Quantile(0.5) != 0 || empty.Mean() != 0 {
		t.Error("an empty histogram has a latency")
	}
}
