package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const testLUN = int64(300) << 30 // three blocks, the last in part; a hole, so it costs nothing

// intents makes a LUN of size bytes with clean intents.
func intents(t testing.TB, s *Store, size int64) *Intents {
	t.Helper()
	if err := s.Default().CreateLUN(lunA, size, NoBirth); err != nil {
		t.Fatal(err)
	}
	x := openIntents(t, s, size)
	x.Clear(nil)
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	return x
}

func openIntents(t testing.TB, s *Store, size int64) *Intents {
	t.Helper()
	x, err := s.Default().OpenIntents(lunA, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

func bitset(size int64, regions ...uint32) []uint64 {
	w := make([]uint64, wordsFor(regionsOf(size)))
	for _, r := range regions {
		w[r/64] |= 1 << (r % 64)
	}
	return w
}

// onDisk opens the file again, as the next process would after a crash at this moment.
func onDisk(t testing.TB, s *Store, size int64) []uint64 {
	t.Helper()
	x, err := s.Default().OpenIntents(lunA, size)
	if err != nil {
		t.Fatal(err)
	}
	defer x.f.Close() // not Close, which would write
	return x.Dirty()
}

func same(t *testing.T, what string, got, want []uint64) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				t.Fatalf("%s: word %d differs, %d words, want %d", what, i, len(got), len(want))
			}
		}
		t.Fatalf("%s: %d words, want %d", what, len(got), len(want))
	}
}

func TestSetIsDurableWhenItReturns(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	x := intents(t, s, testLUN)
	before := x.Writes()
	if err := x.Set([]uint32{1, 2, 3, 32255}); err != nil {
		t.Fatal(err)
	}
	if n := x.Writes() - before; n != 1 {
		t.Fatalf("%d writes for the regions of one block", n)
	}
	same(t, "one block", onDisk(t, s, testLUN), bitset(testLUN, 1, 2, 3, 32255))
	if err := x.Set([]uint32{2, 32255, 1}); err != nil {
		t.Fatal(err)
	}
	if err := x.SetRange(3*RegionSize-1, 2); err != nil {
		t.Fatal(err)
	}
	if n := x.Writes() - before; n != 1 {
		t.Fatalf("%d writes after what is set was set again", n)
	}
	if err := x.SetRange(32255*RegionSize+7, 2*RegionSize); err != nil { // 32255 and, in the next block, 32256 and 32257
		t.Fatal(err)
	}
	if n := x.Writes() - before; n != 2 {
		t.Fatalf("%d writes", n)
	}
	same(t, "two blocks", onDisk(t, s, testLUN), bitset(testLUN, 1, 2, 3, 32255, 32256, 32257))
	for name, err := range map[string]error{"region": x.Set([]uint32{0, uint32(x.Regions())}), "range": x.SetRange(testLUN-1, 2),
		"negative": x.SetRange(-1, 2)} {
		if !errors.Is(err, ErrRange) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := x.SetRange(testLUN, 0); err != nil {
		t.Errorf("nothing at the end: %v", err)
	}
}

func TestSetRangeAgainstAModel(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	const size = 1000*RegionSize + 12345
	x := intents(t, s, size)
	want := bitset(size)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		off := rnd.Int64N(size)
		length := rnd.Int64N(min(size-off, 200*RegionSize)) + 1
		if rnd.IntN(4) == 0 {
			keep := onDisk(t, s, size)
			for i := range keep {
				keep[i] &= rnd.Uint64()
				want[i] &= keep[i]
			}
			x.Clear(keep)
		}
		if err := x.SetRange(off, length); err != nil {
			t.Fatal(err)
		}
		for r := off / RegionSize; r <= (off+length-1)/RegionSize; r++ {
			want[r/64] |= 1 << (r % 64)
		}
		same(t, "in memory", x.Dirty(), want)
		for i, w := range onDisk(t, s, size) {
			if want[i]&^w != 0 {
				t.Fatalf("word %d on disk lacks %x", i, want[i]&^w)
			}
		}
	}
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	same(t, "flushed", onDisk(t, s, size), want)
}

func TestIntentFaults(t *testing.T) {
	var inject atomic.Pointer[string]
	set := func(op string) { inject.Store(&op) }
	var errno error
	s := open(t, t.TempDir(), Options{Faults: func(op, _ string, _, _ int64) error {
		if p := inject.Load(); p != nil && *p == op {
			return errno
		}
		return nil
	}})
	if err := s.Default().CreateLUN(lunA, testLUN, NoBirth); err != nil {
		t.Fatal(err)
	}
	errno = syscall.ENOSPC
	set(FaultCreate)
	if _, err := s.Default().OpenIntents(lunA, testLUN/2); !errors.Is(err, ErrNoSpace) || s.Failed() != nil {
		t.Fatalf("no space to create: %v, store %v", err, s.Failed())
	}
	set("")
	x := openIntents(t, s, testLUN/2)
	x.Clear(nil)
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	set(FaultTruncate)
	if err := x.Grow(testLUN); !errors.Is(err, ErrNoSpace) || s.Failed() != nil || x.Regions() != testLUN/2/RegionSize {
		t.Fatalf("no space to grow: %v, store %v", err, s.Failed())
	}
	set("")
	if err := x.Grow(testLUN); err != nil {
		t.Fatal(err)
	}
	if err := x.Set([]uint32{9}); err != nil {
		t.Fatal(err)
	}
	errno = syscall.EIO
	set(FaultIntent)
	if err := x.Set([]uint32{10}); !errors.Is(err, ErrMedia) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("a failed write: %v", err)
	}
	set("")
	if s.Failed() == nil {
		t.Fatal("the store is still trusted")
	}
	for name, err := range map[string]error{"cold": x.Set([]uint32{11}), "hot": x.Set([]uint32{9}), "flush": x.Flush(), "close": x.Close()} {
		if !errors.Is(err, ErrFailed) && !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after the failure: %v", name, err)
		}
	}
	if w := onDisk(t, s, testLUN); w[0]&(1<<9) == 0 {
		t.Fatal("what was durable is not any more")
	}
}

// gate holds block writes back, and counts them.
type gate struct {
	entered chan struct{}
	release chan struct{}
}

func gated(t *testing.T) (*Store, *gate) {
	g := &gate{entered: make(chan struct{}), release: make(chan struct{})}
	var on atomic.Bool
	s := open(t, t.TempDir(), Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultIntent && on.Load() {
			g.entered <- struct{}{}
			<-g.release
		}
		return nil
	}})
	x := intents(t, s, testLUN)
	x.Close()
	on.Store(true)
	return s, g
}

func untilCount(t *testing.T, x *Intents, n int64) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); x.Count() < n; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%d regions are set, want %d", x.Count(), n)
		}
	}
}

// While one write of a block is under way, all that is asked for meanwhile shares the next.
func TestSetIsGroupCommitted(t *testing.T) {
	s, g := gated(t)
	x := openIntents(t, s, testLUN)
	var wg sync.WaitGroup
	wg.Go(func() { x.Set([]uint32{0}) })
	<-g.entered
	const callers = 100
	for i := range callers {
		wg.Go(func() {
			if err := x.Set([]uint32{uint32(100 + i)}); err != nil {
				t.Error(err)
			}
		})
	}
	untilCount(t, x, callers+1) // every call has put its bit into the bitmap
	g.release <- struct{}{}
	<-g.entered
	g.release <- struct{}{}
	wg.Wait()
	if n := x.Writes(); n != 2 {
		t.Fatalf("%d writes for %d calls", n, callers+1)
	}
	if got := onDisk(t, s, testLUN); got[100/64]>>(100%64)&1 == 0 {
		t.Fatal("not on disk")
	}
}

// A region is cleared, and a write without its bit is under way when it is set again: the old bit
// does not count.
func TestSetAfterClearWaitsForAWriteOfItsOwn(t *testing.T) {
	s, g := gated(t)
	x := openIntents(t, s, testLUN)
	errs := make(chan error, 1)
	step := func() { <-g.entered; g.release <- struct{}{} }
	go func() { errs <- x.Set([]uint32{5}) }()
	step()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	x.Clear(nil)
	if err := x.Set([]uint32{5}); err != nil || x.Writes() != 1 { // the bit is still on disk and nothing takes it away
		t.Fatalf("%v, %d writes", err, x.Writes())
	}
	x.Clear(nil)
	go func() { errs <- x.Set([]uint32{6}) }()
	<-g.entered // a write that has 6 and not 5
	again := make(chan error, 1)
	go func() { again <- x.Set([]uint32{5}) }()
	untilCount(t, x, 2)
	select {
	case err := <-again:
		t.Fatalf("it returned while a write without its bit was under way: %v", err)
	default:
	}
	x.Clear(bitset(testLUN, 6)) // and a clear meanwhile does not undo it
	g.release <- struct{}{}
	step()
	if err := errors.Join(<-errs, <-again); err != nil {
		t.Fatal(err)
	}
	same(t, "on disk", onDisk(t, s, testLUN), bitset(testLUN, 5, 6))
}

// Whatever is set, cleared and flushed at once: when a Set has returned, its bit is on disk until
// it is cleared.
func TestIntentsConcurrently(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	x := intents(t, s, testLUN)
	var keepMu sync.RWMutex // what a caller holds so that no Clear falls between Set and its write
	var wg, cleaner sync.WaitGroup
	stop := make(chan struct{})
	cleaner.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			keepMu.Lock()
			x.Clear(nil)
			keepMu.Unlock()
			if i%3 == 0 {
				if err := x.Flush(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for w := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 9))
			for range 60 {
				r := uint32(rnd.Int64N(x.Regions()))
				keepMu.RLock()
				if err := x.Set([]uint32{r}); err != nil {
					t.Error(err)
				}
				f, err := os.Open(filepath.Join(s.dir, x.path))
				if err != nil {
					t.Error(err)
				} else {
					if err := hasBit(x, f, r); err != nil {
						t.Error(err)
					}
					f.Close()
				}
				keepMu.RUnlock()
			}
		})
	}
	wg.Wait()
	close(stop)
	cleaner.Wait()
}

// hasBit reads the block of a region. The page cache may show a write half done, so an unreadable
// block, which counts as dirty, is as good as a set bit.
func hasBit(x *Intents, f *os.File, r uint32) error {
	buf := make([]byte, intentBlock)
	b := r / blockRegions
	if _, err := f.ReadAt(buf, int64(b)*intentBlock); err != nil {
		return err
	}
	words := make([]uint64, blockWords)
	in := r % blockRegions
	if err := x.owner.decode(buf, b, words); err == nil && words[in/64]>>(in%64)&1 == 0 {
		return fmt.Errorf("region %d is not on disk", r)
	}
	return nil
}

func TestNoAllocationForHotRegions(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	x := intents(t, s, testLUN)
	regions := []uint32{1, 2, 50000}
	if err := x.Set(regions); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if x.Set(regions) != nil || x.SetRange(RegionSize, 4096) != nil {
			t.Error("set failed")
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
