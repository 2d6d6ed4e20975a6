package store

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// A disk that was fast is slow the next moment, as one is whose burst credits are used up, while
// writers go on: a flush takes as long as what was there takes now, and a little more.
func TestDiskThatGetsSlower(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize+768<<20)
	s := open(t, filepath.Join(d.Mount, "store"), Options{})
	const size, perSecond = 512 << 20, 12 << 20
	f := newLUN(t, s, lunA, size)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	var written atomic.Int64
	for w := range int64(4) {
		wg.Go(func() {
			p := make([]byte, 256<<10)
			for off := w * (size / 4); ctx.Err() == nil; {
				if err := f.WriteAt(p, off); err != nil {
					t.Error(err)
					return
				}
				written.Add(int64(len(p)))
				if off += int64(len(p)); off >= (w+1)*(size/4) {
					off = w * (size / 4)
				}
			}
		})
	}
	unflushed := s.Default().Unflushed
	deadline := time.Now().Add(60 * time.Second)
	for u := unflushed(); u.Limit < unflushedMax || u.Rate < 10*perSecond || u.Bytes < u.Limit*3/4; u = unflushed() {
		if time.Now().After(deadline) {
			t.Skipf("this machine's disk is too slow for the test: %+v", u)
		}
		time.Sleep(time.Millisecond)
	}
	if err := d.Set(t.Context(), slowdisk.Knobs{WriteBandwidth: perSecond}); err != nil {
		t.Fatal(err)
	}
	u, before := unflushed(), time.Now()
	took := written.Load()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	first := time.Since(before)
	took = written.Load() - took
	before = time.Now()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	second := time.Since(before)
	t.Logf("%d MiB of %d were unflushed: the first flush took %v, in which %d MiB were taken, the second %v; %+v", u.Bytes>>20, u.Limit>>20, first, took>>20, second, unflushed())
	if first > 5*time.Second {
		t.Errorf("the flush of %d bytes took %v, want less than Dm", u.Bytes, first)
	}
	if second > 3*time.Second {
		t.Errorf("the second flush took %v", second)
	}
}
