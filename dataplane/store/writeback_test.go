package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// Writers that are faster than the disk wait, and a flush in the midst of it is short: without a
// bound it takes as long as the disk needs for all that was ever written.
func TestUnflushedIsBoundedByTheDisk(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize+512<<20)
	s := open(t, filepath.Join(d.Mount, "store"), Options{})
	const size, perSecond = 256 << 20, 32 << 20
	f := newLUN(t, s, lunA, size)
	if err := d.Set(t.Context(), slowdisk.Knobs{WriteBandwidth: perSecond}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var written atomic.Int64
	var worst atomic.Int64
	for w := range int64(4) {
		wg.Go(func() {
			p := make([]byte, 256<<10)
			for off := w * (size / 4); ctx.Err() == nil; {
				before := time.Now()
				if err := f.WriteAt(p, off); err != nil {
					t.Error(err)
					return
				}
				worst.Store(max(worst.Load(), int64(time.Since(before))))
				written.Add(int64(len(p)))
				if off += int64(len(p)); off >= (w+1)*(size/4) {
					off = w * (size / 4)
				}
			}
		})
	}
	var longest time.Duration
	for ctx.Err() == nil {
		time.Sleep(700 * time.Millisecond) // a flush now and then, as checkpoints do
		before := time.Now()
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(before))
	}
	wg.Wait()
	u := s.Default().Unflushed()
	t.Logf("%d MiB written in 6 s, the longest write %v, the longest flush %v; %+v", written.Load()>>20, time.Duration(worst.Load()), longest, u)
	if u.Waits == 0 || u.Rate == 0 {
		t.Errorf("writers at many times the speed of the disk did not wait: %+v", u)
	}
	if most := int64(6*perSecond*3/2 + unflushedMax); written.Load() > most {
		t.Errorf("%d bytes were taken in 6 s by a disk of %d a second", written.Load(), perSecond)
	}
	if longest > 3*time.Second {
		t.Errorf("a flush took %v", longest)
	}
}

// What writeback reports is final, as for Sync: the kernel says once that pages are lost.
func TestFailedWritebackFailsTheStore(t *testing.T) {
	s, f := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultWriteback {
			return unix.EIO
		}
		return nil
	}})
	p := make([]byte, 1<<20)
	deadline := time.Now().Add(30 * time.Second)
	for s.Failed() == nil {
		if err := f.WriteAt(p, 0); err != nil && !errors.Is(err, ErrFailed) {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the store has not failed")
		}
	}
	if err := f.WriteAt(p, 0); !errors.Is(err, ErrFailed) {
		t.Errorf("a write afterwards: %v", err)
	}
	if err := f.Sync(); !errors.Is(err, ErrFailed) {
		t.Errorf("a flush afterwards: %v", err)
	}
	for { // the mark is written right after the failure is known
		why, err := s.Untrusted()
		if err != nil || why == "" && time.Now().After(deadline) {
			t.Fatalf("the store is not marked: %q, %v", why, err)
		}
		if why != "" {
			break
		}
	}
}

// Nothing counts twice or for ever: a flush, and a file that is closed, give back what they had.
func TestUnflushedIsGivenBack(t *testing.T) {
	s, f := lunFile(t, Options{})
	unflushed := func() int64 { return s.Default().Unflushed().Bytes }
	p := make([]byte, 1<<20)
	if err := f.WriteAt(p, pieceSize/4); err != nil {
		t.Fatal(err)
	}
	if got := unflushed(); got != 1<<20 {
		t.Errorf("%d bytes are not flushed after a write of 1 MiB", got)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := unflushed(); got != 0 {
		t.Errorf("%d bytes are not flushed after a flush", got)
	}
	if err := f.WriteAt(p, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := unflushed(); got != 0 {
		t.Errorf("%d bytes of a closed file", got)
	}
	if err := f.WriteAt(p, 0); err == nil || unflushed() != 0 {
		t.Errorf("a write into a closed file: %v, %d bytes", err, unflushed())
	}
}

// A file that is closed while it is written out, flushed or written to durably, as that of a LUN
// that is deleted, is no failure of the disk.
func TestClosedFileDoesNotFailTheStore(t *testing.T) {
	for _, at := range []string{FaultWriteback, FaultSync, FaultWrite} {
		t.Run(at, func(t *testing.T) {
			var f *File
			var closing sync.Once
			var begun atomic.Bool
			s, lun := lunFile(t, Options{Faults: func(op, path string, _, _ int64) error {
				if op == at && begun.Load() && path == f.path {
					closing.Do(func() {
						if err := f.Close(); err != nil {
							t.Error(err)
						}
					})
				}
				return nil
			}})
			f = lun
			begun.Store(at != FaultWrite)
			p := make([]byte, 4<<10)
			for i := range int64(4 * batchWrites) {
				if err := f.WriteAt(p, i%2*pieceSize+i/2*int64(len(p))); err != nil {
					t.Fatal(err)
				}
			}
			begun.Store(true)
			if err := f.Sync(); at != FaultWrite && !errors.Is(err, os.ErrClosed) {
				t.Errorf("a flush of a closed file: %v", err)
			}
			if err := f.WriteAt(p, 0); !errors.Is(err, os.ErrClosed) {
				t.Errorf("a write into a closed file: %v", err)
			}
			if err := s.Failed(); err != nil {
				t.Errorf("the store failed: %v", err)
			}
		})
	}
}

// Files take turns, and a piece is taken once.
func TestPiecesOfAllFilesInTurn(t *testing.T) {
	s, f := lunFile(t, Options{})
	g := newLUN(t, s, lunB, 8<<20)
	w := newWriteback(s)
	w.wrote(f.image, pieceSize-10, 20) // two pieces
	for i := range int64(batchWrites) {
		w.wrote(f.image, (3+i)*pieceSize, 5)
	}
	w.wrote(g.image, 0, 7)
	w.wrote(f.image, pieceSize, 1) // a piece that is there
	w.mu.Lock()
	defer w.mu.Unlock()
	var sum int64
	var order []*image
	var lengths []int
	for {
		x, b := w.next()
		if x == nil {
			break
		}
		order, sum, lengths = append(order, x), sum+bytesOf(b), append(lengths, len(b))
	}
	if sum != 20+5*batchWrites+7+1 || !slices.Equal(order, []*image{f.image, g.image, f.image}) || !slices.Equal(lengths, []int{batchWrites - 1, 1, 3}) {
		t.Errorf("%d bytes in batches of %d pieces", sum, lengths)
	}
}

// Writes that wait get room in order of arrival, as much as there is, and none overtakes them.
func TestWritesWaitInTurn(t *testing.T) {
	s, _ := lunFile(t, Options{})
	w := newWriteback(s)
	w.limit.Store(100)
	w.dirty.Store(100)
	w.busy, w.rate.since = 1, time.Now().Add(time.Hour) // no sample of the rate, which would set the limit
	admitted := make(chan int, 3)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			w.wait(10)
			admitted <- i
		})
		for w.queue.Load() != int32(i+1) {
			time.Sleep(time.Millisecond)
		}
	}
	ended := func(bytes int64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended(bytes)
	}
	ended(10)
	if first := <-admitted; first != 0 || w.queue.Load() != 2 {
		t.Fatalf("number %d went first, %d wait", first, w.queue.Load())
	}
	if !w.full() {
		t.Error("a write that comes now would go before those who wait")
	}
	w.dirty.Add(10) // of the first
	ended(5)
	if second := <-admitted; second != 1 || w.queue.Load() != 1 {
		t.Fatalf("number %d went second, %d wait", second, w.queue.Load())
	}
	w.dirty.Add(10)
	w.mu.Lock()
	w.ends() // nothing makes room any more
	w.mu.Unlock()
	wg.Wait()
	if w.queue.Load() != 0 {
		t.Errorf("%d wait", w.queue.Load())
	}
}

// A flush of much gives room back while it is under way, and not all at its end.
func TestFlushGivesRoomBackOnTheWay(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize+256<<20)
	s := open(t, filepath.Join(d.Mount, "store"), Options{})
	const size = 64 << 20
	f := newLUN(t, s, lunA, size)
	p := make([]byte, 64<<10)
	for off := int64(0); off < size; off += 4 * int64(len(p)) {
		if err := f.WriteAt(p, off); err != nil {
			t.Fatal(err)
		}
	}
	had := s.Default().Unflushed().Bytes
	if err := d.Set(t.Context(), slowdisk.Knobs{WriteBandwidth: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Sync() }()
	between := 0
	for running := true; running; {
		select {
		case err := <-ended:
			if running = false; err != nil {
				t.Fatal(err)
			}
		case <-time.After(5 * time.Millisecond):
			if n := s.Default().Unflushed().Bytes; n > 0 && n < had {
				between++
			}
		}
	}
	t.Logf("%d bytes; seen in between %d times", had, between)
	if between < 5 {
		t.Error("a flush keeps all that it writes out until its end")
	}
}

// Writes that lie far from each other, as those of a large LUN do, are given to the disk together:
// one after the other each would cost the disk's latency.
func TestScatteredWritesGoOutTogether(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize+512<<20)
	s := open(t, filepath.Join(d.Mount, "store"), Options{})
	const size, latency = 64 << 30, 5 * time.Millisecond
	f := newLUN(t, s, lunA, size)
	if err := d.Set(t.Context(), slowdisk.Knobs{WriteLatency: latency}); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4<<10)
	begun, n := time.Now(), int64(0)
	for ; time.Since(begun) < 5*time.Second && n < 3*unflushedMax/int64(len(p)); n++ {
		if err := f.WriteAt(p, n*7919*pieceSize%size); err != nil {
			t.Fatal(err)
		}
	}
	u := s.Default().Unflushed()
	t.Logf("%d writes in %v, %+v", n, time.Since(begun).Round(time.Millisecond), u)
	if alone := float64(len(p)) / latency.Seconds(); u.Rate < 1.5*writers*alone {
		t.Errorf("%.0f bytes are written out a second; as many as there are writers would make %.0f", u.Rate, writers*alone)
	}
}

// While a disk empties its cache, it is given nothing that makes a write wait, until writes would
// wait for room.
func TestNothingIsWrittenOutDuringAFlush(t *testing.T) {
	flushing, end := make(chan struct{}), make(chan struct{})
	var out atomic.Int32
	s, f := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultWriteback {
			out.Add(1)
		}
		return nil
	}})
	w := s.Default().writeback
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = w.flush(func() error {
			close(flushing)
			<-end
			return nil
		})
	})
	<-flushing
	p := make([]byte, 1<<20)
	write := func(bytes int64) {
		for done := int64(0); done < bytes; done += int64(len(p)) {
			if err := f.WriteAt(p, done%(4<<20)); err != nil {
				t.Error(err)
				return
			}
		}
	}
	write(w.limit.Load() * 3 / 4)
	if n := out.Load(); n != 0 {
		t.Errorf("%d pieces are written out during a flush", n)
	}
	if write(w.limit.Load()); out.Load() == 0 {
		t.Error("nothing is written out although writes wait")
	}
	close(end)
	wg.Wait()
}

// What is written while a flush writes out what it found is written out in turn.
func TestFlushTakesWhatIsWrittenMeanwhile(t *testing.T) {
	var f *File
	p := make([]byte, 4<<10)
	rounds, out := 0, 0
	var mu sync.Mutex
	_, lun := lunFile(t, Options{Faults: func(op, _ string, _, length int64) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case op == FaultSync && rounds > 0:
			if out < 2 {
				t.Errorf("%d pieces were written out before the flush", out)
			}
			if left := f.wb.dirty.Load(); left > 0 {
				t.Errorf("%d bytes are left to the flush", left)
			}
		case op == FaultWriteback:
			out++
			if rounds++; rounds > 1 {
				return nil
			}
			for i := range int64(4 * batchWrites) {
				f.wb.wrote(f.image, i*int64(len(p)), int64(len(p)))
			}
		}
		return nil
	}})
	f = lun
	for i := range int64(4 * batchWrites) {
		if err := f.WriteAt(p, i*int64(len(p))); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil || rounds < 2 {
		t.Errorf("%v, %d rounds", err, rounds)
	}
}
