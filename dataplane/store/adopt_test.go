package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// before makes a LUN without checksums, and returns the store's directory.
func before(t *testing.T, size int64, fill func(f *File)) string {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(dir, testIdent, Options{})
	must(t, err)
	f := newLUN(t, s, lunA, size)
	fill(f)
	must(t, errors.Join(f.Sync(), f.Close(), s.Close()))
	return dir
}

func TestAdoptionOfAnImageWithoutChecksums(t *testing.T) {
	const size = 200<<20 + 512
	model := content(1, 4<<20)
	dir := before(t, size, func(f *File) {
		must(t, f.WriteAt(model, 0))
		must(t, f.WriteAt(model, 100<<20))
		must(t, f.WriteAt(model[:512], 200<<20))
	})
	opts := withSums()
	var stop context.CancelFunc
	opts.Faults = func(op, path string, off, _ int64) error {
		if stop != nil && op == FaultRead && off > 101<<20 {
			stop()
		}
		return nil
	}
	s, err := Open(dir, testIdent, opts)
	must(t, err)
	f := openLUN(t, s, lunA)
	if done, total := f.Adopted(); done != 0 || total != size {
		t.Errorf("%d of %d", done, total)
	}
	must(t, f.WriteAt(content(2, 512), 150<<20)) // checked from now on
	flip(t, s, lunA, 150<<20)
	if got := wrong(t, f, 150<<20, 4096); len(got) != 1 {
		t.Errorf("%v", got)
	}
	must(t, f.Heal(content(2, 4096), 150<<20))
	reads(t, f, 64<<20, make([]byte, 4096)) // zeroes of which nothing is known
	if hole, err := f.Hole(64<<20, 4<<20); err != nil || !hole {
		t.Errorf("a hole: %v, %v", hole, err)
	}
	var ctx context.Context
	ctx, stop = context.WithCancel(t.Context())
	if err := f.Adopt(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	stop = nil
	if done, _ := f.Adopted(); done < 101<<20 || done > 102<<20 {
		t.Errorf("stopped at %d", done)
	}
	must(t, errors.Join(f.Close(), s.Close()))
	s = open(t, dir, opts)
	f = openLUN(t, s, lunA)
	if done, _ := f.Adopted(); done < 64<<20 || done > 102<<20 {
		t.Errorf("goes on at %d", done)
	}
	if err := f.Adopt(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, f.Adopt(t.Context()))
	must(t, f.Adopt(t.Context()))
	if done, total := f.Adopted(); done != total || total != size {
		t.Errorf("%d of %d", done, total)
	}
	wantWrong(t, f)
	for _, at := range []int64{4096, 64 << 20, 100<<20 + 8192, 150 << 20, 200 << 20} {
		flip(t, s, lunA, at)
	}
	want := []Range{{4096, 4096}, {64 << 20, 4096}, {100<<20 + 8192, 4096}, {150 << 20, 4096}, {200 << 20, 512}}
	wantWrong(t, openLUN(t, crashed(t, dir, withSums()), lunA), want...) // it is durable
	wantWrong(t, f, want...)
}

// TestAdoptionOfBlocksThatCannotBeRead: they are lost, the others are not.
func TestAdoptionOfBlocksThatCannotBeRead(t *testing.T) {
	dir := before(t, 1<<20, func(f *File) { must(t, f.WriteAt(content(1, 1<<20), 0)) })
	var broken atomic.Bool
	disk := unreadable(300 << 10)
	opts := withSums()
	opts.Faults = func(op, path string, off, n int64) error {
		if !broken.Load() {
			return nil
		}
		return disk(op, path, off, n)
	}
	f := openLUN(t, open(t, dir, opts), lunA)
	broken.Store(true)
	must(t, f.Adopt(t.Context()))
	broken.Store(false)
	wantWrong(t, f, Range{300 << 10, 4096})
	must(t, f.Heal(content(2, 4096), 300<<10))
	wantWrong(t, f)
}

// TestAdoptionWithoutSpace continues later.
func TestAdoptionWithoutSpace(t *testing.T) {
	dir := before(t, 1<<20, func(f *File) { must(t, f.WriteAt(content(1, 1<<20), 0)) })
	var full atomic.Bool
	opts := withSums()
	opts.Faults = func(op, path string, _, _ int64) error {
		if op == FaultSums && full.Load() && strings.HasPrefix(path, sumsDir) {
			return syscall.ENOSPC
		}
		return nil
	}
	s := open(t, dir, opts)
	f := openLUN(t, s, lunA)
	full.Store(true)
	if err := f.Adopt(t.Context()); !errors.Is(err, ErrNoSpace) || s.Failed() != nil {
		t.Errorf("%v, %v", err, s.Failed())
	}
	full.Store(false)
	must(t, f.Adopt(t.Context()))
	wantWrong(t, f)
}

// TestAdoptionUnderChanges: writes and discards of hosts go on meanwhile, and the checksum of no
// block is of what it was before them.
func TestAdoptionUnderChanges(t *testing.T) {
	const size, workers = 24 << 20, 4
	dir := before(t, size, func(f *File) { must(t, f.WriteAt(content(1, size), 0)) })
	s := open(t, dir, withSums())
	f, g := openLUN(t, s, lunA), openLUN(t, s, lunA)
	model := content(1, size)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range int64(workers) {
		wg.Go(func() { // blocks of its own, as behind locks of ranges
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				at := (rnd.Int64N(size/4096/workers)*workers + w) * 4096
				var err error
				switch i % 4 {
				case 0:
					err = f.WriteAt(content(i+2, 4096), at)
					copy(model[at:], content(i+2, 4096))
				case 1:
					err = f.WriteAt(content(i+2, 512), at+1024)
					copy(model[at+1024:], content(i+2, 512))
				case 2:
					err = f.Discard(at, 4096)
					clear(model[at : at+4096])
				case 3:
					err = f.ReadAt(make([]byte, 4096), at)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var adopters sync.WaitGroup
	for range 2 { // the second one finds nothing to do
		adopters.Go(func() {
			if err := g.Adopt(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	adopters.Wait()
	close(stop)
	wg.Wait()
	wantWrong(t, f)
	reads(t, g, 0, model)
	if done, total := f.Adopted(); done != total {
		t.Errorf("%d of %d", done, total)
	}
}

// TestAdoptionAndChangesKeepApart: a discard between the read of a step and what it makes of that
// would leave the checksum of what was there before, and a step within a write one of what is not
// written yet.
func TestAdoptionAndChangesKeepApart(t *testing.T) {
	for _, held := range []string{FaultRead, FaultWrite, FaultDiscard} {
		t.Run("held in "+held, func(t *testing.T) {
			dir := before(t, 256<<10, func(f *File) { must(t, f.WriteAt(content(1, 256<<10), 0)) })
			entered, release, other := make(chan struct{}), make(chan struct{}), make(chan string, 10)
			var over atomic.Bool
			opts := withSums()
			opts.Faults = func(op, _ string, _, _ int64) error {
				if over.Load() {
					return nil
				}
				switch op {
				case held:
					close(entered)
					<-release
				case FaultRead, FaultWrite, FaultDiscard:
					other <- op
				}
				return nil
			}
			f := openLUN(t, open(t, dir, opts), lunA)
			change := func() error { return f.WriteAt(content(2, 4096), 8192) }
			if held != FaultWrite {
				change = func() error { return f.Discard(8192, 4096) }
			}
			first, second := func() error { return f.Adopt(t.Context()) }, change
			if held != FaultRead {
				first, second = second, first
			}
			var wg sync.WaitGroup
			run := func(fn func() error) {
				wg.Go(func() {
					if err := fn(); err != nil {
						t.Error(err)
					}
				})
			}
			run(first)
			<-entered
			run(second)
			select {
			case op := <-other:
				t.Errorf("%s meanwhile", op)
			case <-time.After(50 * time.Millisecond):
			}
			over.Store(true)
			close(release)
			wg.Wait()
			wantWrong(t, f)
		})
	}
}

// TestAdoptionKeepsItsRate: what is read counts, holes do not.
func TestAdoptionKeepsItsRate(t *testing.T) {
	const size, data, rate = 256 << 20, 2 << 20, 8 << 20
	dir := before(t, size, func(f *File) { must(t, f.WriteAt(content(1, data), 0)) })
	opts := withSums()
	opts.Sums.AdoptRate = rate
	f := openLUN(t, open(t, dir, opts), lunA)
	begun := time.Now()
	must(t, f.Adopt(t.Context()))
	if took := time.Since(begun); took < time.Second*data/rate*9/10 || took > time.Second*size/rate/2 {
		t.Errorf("it took %v for %d bytes at %d a second", took, data, rate)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.s.sums.rest(ctx, size); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that is over: %v", err)
	}
}
