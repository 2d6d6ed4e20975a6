package count

import (
	"sync"
	"testing"
	"time"
)

// No count is lost, however many goroutines count at once.
func TestCountsAreExact(t *testing.T) {
	var l LUN
	var wg sync.WaitGroup
	const each, procs = 10000, 8
	for p := range procs {
		wg.Go(func() {
			for i := range each {
				l.Add(Kind(i%int(Kinds)), Way(p%int(Ways)), int64(i%3)*40000, time.Duration(i)*time.Microsecond)
			}
		})
	}
	wg.Wait()
	sum := l.Read()
	var ops, bytes, hist uint64
	for k := range sum {
		for w := range sum[k] {
			ops += sum[k][w].Count()
			bytes += sum[k][w].Bytes
			for _, x := range sum[k][w].Hist {
				hist += x
			}
		}
	}
	if want := uint64(procs) * (each / 3 * 120000); ops != each*procs || hist != ops || bytes != want {
		t.Errorf("%d commands, %d in the histogram, %d bytes; want %d, %d", ops, hist, bytes, each*procs, want)
	}
}

func TestBucketsEndAtTheirBounds(t *testing.T) {
	for i := range Buckets - 1 {
		if b := bucket(Bound(i)); b != i {
			t.Errorf("%v is in bucket %d, not %d", Bound(i), b, i)
		}
		if b := bucket(Bound(i) + 1); b != i+1 {
			t.Errorf("%v is in bucket %d, not %d", Bound(i)+1, b, i+1)
		}
	}
	for _, d := range []time.Duration{-1, 0, 1} {
		if bucket(d) != 0 {
			t.Errorf("%v is in bucket %d", d, bucket(d))
		}
	}
	if bucket(time.Hour) != Buckets-1 {
		t.Error("an hour is beyond all bounds")
	}
}

func TestSharesAndDifferences(t *testing.T) {
	var l LUN
	l.Add(Read, Own, 4096, 100*time.Microsecond)
	before := l.Read()
	for range 3 {
		l.Add(Read, Own, 4096, 100*time.Microsecond)
	}
	l.Add(Write, Forwarded, 1<<20, 40*time.Millisecond)
	l.Add(Write, Remote, 1<<20, time.Millisecond) // counted where its host logged in
	d := l.Read()
	d.Sub(&before)
	own, fwd := &d[Read][Own], &d[Write][Forwarded]
	if own.Count() != 3 || own.Bytes != 3*4096 || fwd.Count() != 1 || fwd.Bytes != 1<<20 || d[Write][Remote].Count() != 1 {
		t.Errorf("%+v", d)
	}
	if fwd.Ops[Large] != 1 || own.Ops[Small] != 3 || own.Hist[bucket(128*time.Microsecond)] != 3 {
		t.Errorf("%+v", d)
	}
	if d[Other] != ([Ways]Cell{}) {
		t.Errorf("of nothing: %+v", d[Other])
	}
	twice := d
	twice.Plus(&d)
	if n := twice[Read][Own]; n.Count() != 6 || n.Took != 600*time.Microsecond {
		t.Errorf("%+v", n)
	}
	l.Add(Other, Own, 0, time.Minute)
	if all := l.Read(); all[Other][Own].Hist[Buckets-1] != 1 {
		t.Error("a minute is beyond the last bound")
	}
}

func BenchmarkAdd(b *testing.B) {
	var l LUN
	b.RunParallel(func(p *testing.PB) {
		d := time.Duration(0)
		for p.Next() {
			d += 977
			l.Add(Read, Own, 4096, d%time.Millisecond)
		}
	})
}
