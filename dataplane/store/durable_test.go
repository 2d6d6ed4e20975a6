package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// Durable writes that meet share flushes of the disk, and one alone needs no more than it did.
func TestDurableWritesShareFlushes(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	s := open(t, filepath.Join(d.Mount, "store"), Options{})
	f := newLUN(t, s, lunA, 8<<20)
	flushes := func(writers, each int) uint64 {
		must(t, d.Set(t.Context(), slowdisk.Knobs{FlushLatency: 5 * time.Millisecond}))
		before, err := d.Stats(t.Context())
		must(t, err)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					if err := f.WriteAtDurable(content(uint64(i), 4096), int64(w*each+i)%2048*4096); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		after, err := d.Stats(t.Context())
		must(t, err)
		return after.Flushes - before.Flushes
	}
	const n = 320
	flushes(1, n) // blocks for all of them
	if alone, together := flushes(1, n), flushes(32, n/32); together > alone/4 {
		t.Errorf("%d durable writes need %d flushes one after the other, and %d from 32 writers", n, alone, together)
	}
}

// goingDown is XFS_IOC_GOINGDOWN, and noLogFlush has the filesystem shut down as if the power had
// failed: what its journal on the disk does not have is lost.
const goingDown, noLogFlush = 0x8004587d, 2

// What a durable write has said to be durable is there after the power has failed: blocks that were
// holes before, whose place only the journal knows, among writes that are not durable, and among
// some that find no space.
func TestDurableWritesSurviveALossOfPower(t *testing.T) {
	for name, full := range map[string]bool{"room": false, "no room": true} {
		t.Run(name, func(t *testing.T) { losePower(t, full, false) })
	}
	t.Run("extents move", func(t *testing.T) { losePower(t, false, true) })
}

func losePower(t *testing.T, full, spread bool) {
	d := testDisk(t, 2*slowdisk.MinSize)
	dir := filepath.Join(d.Mount, "store")
	opts := Options{SharedFilesystem: true}
	if spread {
		opts.Members = []MemberDir{{DefaultBackingVolume, "x", filepath.Join(d.Mount, "x")}, {DefaultBackingVolume, "y", filepath.Join(d.Mount, "y")}}
	}
	s, err := Open(dir, testIdent, opts)
	must(t, err)
	must(t, s.Default().CreateLUN(lunA, 64<<20, NoBirth))
	f, err := s.Default().OpenLUN(lunA)
	must(t, err)
	const writers, slots = 16, 256
	var down atomic.Bool
	var refused atomic.Int64
	if full {
		for k := range writers * slots { // every other slot has its block
			if k%2 == 0 {
				must(t, f.WriteAt(mine(0, 0), int64(k)*4096*3))
			}
		}
		must(t, f.Sync())
		ballast(t, filepath.Join(d.Mount, "ballast"))
	}
	var acked [writers][slots]uint64 // the last content that was durable, or lies between it and the one that was under way
	var begun [writers][slots]uint64
	var wg sync.WaitGroup
	if spread {
		wg.Go(func() {
			rng, moved := rand.New(rand.NewPCG(8, 8)), 0
			for !down.Load() {
				if f.MoveExtent(t.Context(), rng.Int64N(f.ExtentCount()), uint8(1+rng.IntN(3))) == nil {
					moved++
				}
			}
			if moved < 10 {
				t.Errorf("%d extents have moved", moved)
			}
		})
	}
	for w := range writers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for n := uint64(1); !down.Load(); n++ {
				k := rng.IntN(slots)
				off := int64(w*slots+k) * 4096 * 3 // no two of them touch
				begun[w][k] = n
				var err error
				if durable := rng.IntN(4) > 0; durable {
					// What ends while the filesystem goes down does not count. When power fails,
					// no write ends; but a flush that begins before the shutdown may succeed
					// after it, when XFS has emptied its journal and finds nothing to flush.
					if err = f.WriteAtDurable(mine(w, n), off); err == nil && !down.Load() {
						acked[w][k] = n
					}
				} else {
					err = f.WriteAt(mine(w, n), off)
				}
				switch {
				case err == nil:
				case full && errors.Is(err, ErrNoSpace):
					refused.Add(1)
				case !down.Load():
					t.Error(err)
					return
				}
			}
		})
	}
	wait := time.NewTimer(2 * time.Second)
	<-wait.C
	down.Store(true)
	how := uint32(noLogFlush)
	err = f.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, goingDown, int(how)) })
	wg.Wait()
	_, _ = f.Close(), s.Close() // the filesystem is down
	must(t, err)
	must(t, d.Remount(t.Context()))
	s, err = Open(dir, testIdent, opts)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	f = openLUN(t, s, lunA)
	got, checked := make([]byte, 4096), 0
	for w := range writers {
		for k := range slots {
			if acked[w][k] == 0 {
				continue
			}
			checked++
			must(t, f.ReadAt(got, int64(w*slots+k)*4096*3))
			ok := false
			for n := acked[w][k]; n <= begun[w][k] && !ok; n++ { // a later one may have come as far
				ok = bytes.Equal(got, mine(w, n))
			}
			if !ok {
				t.Fatalf("writer %d, slot %d: write %d was durable and is lost", w, k, acked[w][k])
			}
		}
	}
	if checked < 100 || full && refused.Load() < 100 {
		t.Errorf("only %d slots were written durably, and %d writes found no space", checked, refused.Load())
	}
}

// ballast takes all space of a filesystem.
func ballast(t *testing.T, name string) {
	t.Helper()
	b, err := os.Create(name)
	must(t, err)
	defer func() { must(t, b.Close()) }()
	for size, step := int64(0), int64(64<<20); step >= 4096; {
		if unix.Fallocate(int(b.Fd()), 0, size, step) == nil {
			size += step
		} else {
			step /= 2
		}
	}
}

func mine(writer int, n uint64) []byte { return content(uint64(writer)<<40|n, 4096) }

// When a write finds no space, or the disk fails, each write that shares the flush gets the error
// that it would get alone: none waits for ever, and none is called durable that is not.
func TestFailuresAmongDurableWrites(t *testing.T) {
	for name, c := range map[string]struct {
		fault string
		err   error
	}{"no space": {FaultWrite, syscall.ENOSPC}, "write": {FaultWrite, syscall.EIO}} {
		t.Run(name, func(t *testing.T) {
			var left atomic.Int64
			s, f := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
				if op == c.fault && left.Add(-1) == 0 {
					return c.err
				}
				return nil
			}})
			left.Store(40)
			var failed atomic.Int64
			var wg sync.WaitGroup
			for w := range 16 {
				wg.Go(func() {
					for i := range 20 {
						if err := f.WriteAtDurable(content(1, 4096), int64(w*20+i)*4096); err != nil {
							failed.Add(1)
							if errors.Is(err, ErrNoSpace) != (c.err == syscall.ENOSPC) {
								t.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			switch {
			case failed.Load() == 0:
				t.Error("no write was told of the failure")
			case (s.Failed() != nil) == (c.err == syscall.ENOSPC):
				t.Errorf("the store has failed: %v", s.Failed())
			case c.err == syscall.ENOSPC && failed.Load() != 1:
				t.Errorf("%d writes failed for one that found no space", failed.Load())
			}
		})
	}
}

// The blocks of writes that have joined are written out before the flush, where the file has other
// dirty data: a failure of that is the failure of all of them.
func TestFailureToWriteOutJoinedWrites(t *testing.T) {
	s, f := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultWriteback {
			return syscall.EIO
		}
		return nil
	}})
	g := &f.durables
	g.running, g.next = true, new(Durable) // writes that come now join
	const n = 4
	done := make(single, n)
	for i := range int64(n) {
		f.WriteDurable(&Durable{P: content(1, 4096), Off: i * 4096, By: done})
	}
	g.next = nil
	must(t, f.WriteAt(content(2, 4096), n*4096)) // no caller waits for it to be durable
	f.handLead()
	for range n {
		select {
		case err := <-done:
			if err == nil {
				t.Error("a write whose blocks could not be written out is called durable")
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a write waits for ever")
		}
	}
	if s.Failed() == nil {
		t.Error("the store is still trusted")
	}
}
