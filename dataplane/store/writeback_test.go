package store

import (
	"context"
	"errors"
	"path/filepath"
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
	if most := int64(6*perSecond*3/2 + unflushedStart); written.Load() > most {
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

// Files take turns, and a piece is taken once.
func TestPiecesOfAllFilesInTurn(t *testing.T) {
	s, f := lunFile(t, Options{})
	g := newLUN(t, s, lunB, 8<<20)
	w := newWriteback(s)
	w.wrote(f, pieceSize-10, 20) // two pieces
	w.wrote(f, 3*pieceSize, 5)
	w.wrote(g, 0, 7)
	w.mu.Lock()
	defer w.mu.Unlock()
	var sum int64
	var order []*File
	for {
		x, _, bytes := w.next()
		if x == nil {
			break
		}
		order, sum = append(order, x), sum+bytes
	}
	if sum != 32 || len(order) != 4 || order[0] != f || order[1] != g || order[2] != f {
		t.Errorf("%d bytes in %d pieces", sum, len(order))
	}
}
