package store

import (
	"errors"
	"fmt"
	"log/slog"
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
	if err := s.CreateLUN(lunA, size); err != nil {
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
	x, err := s.OpenIntents(lunA, size)
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

// onDisk opens the file anew, as the next process would after a crash at this moment.
func onDisk(t testing.TB, s *Store, size int64) []uint64 {
	t.Helper()
	x, err := s.OpenIntents(lunA, size)
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

func TestIntentsOfANewLUNAreDirtyUntilCleared(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	if _, err := s.OpenIntents(lunA, testLUN); !errors.Is(err, ErrNotFound) {
		t.Fatalf("without a LUN: %v", err)
	}
	if err := s.CreateLUN(lunA, testLUN); err != nil {
		t.Fatal(err)
	}
	x := openIntents(t, s, testLUN)
	if n := x.Count(); n != testLUN/RegionSize || x.Regions() != n || x.Unreadable() != 3 {
		t.Fatalf("%d of %d regions are dirty, %d blocks", n, x.Regions(), x.Unreadable())
	}
	x.Clear(bitset(testLUN, 5, 76799))
	same(t, "in memory", x.Dirty(), bitset(testLUN, 5, 76799))
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, "on disk", onDisk(t, s, testLUN), bitset(testLUN, 5, 76799))
	if x = openIntents(t, s, testLUN); x.Unreadable() != 0 {
		t.Fatalf("%d unreadable blocks", x.Unreadable())
	}
}

func TestIntentsAreAllocatedBeforeUse(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	intents(t, s, testLUN)
	full, _, _ := s.path(kindIntents, lunA)
	st, err := os.Stat(full)
	if err != nil {
		t.Fatal(err)
	}
	if got := st.Sys().(*syscall.Stat_t).Blocks * 512; st.Size() != 3*intentBlock || got < st.Size() {
		t.Fatalf("%d bytes, %d of them allocated", st.Size(), got)
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

// What is torn, garbled, misplaced, of another LUN, of another node or gone is dirty: all of that block, no other.
func TestUnreadableBlocksAreDirty(t *testing.T) {
	whole := func(t *testing.T, path string, change func(b []byte) []byte) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, change(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		bad   []int // blocks
		spoil func(b []byte) []byte
	}{
		{"torn: new first sector, old rest", []int{1}, func(b []byte) []byte { clear(b[intentBlock+512 : 2*intentBlock]); return b }},
		{"torn: old first sector, new rest", []int{0}, func(b []byte) []byte { clear(b[:512]); return b }},
		{"one bit", []int{0}, func(b []byte) []byte { b[intentBlock-1] ^= 1; return b }},
		{"swapped", []int{0, 1}, func(b []byte) []byte {
			return append(append(append([]byte(nil), b[intentBlock:2*intentBlock]...), b[:intentBlock]...), b[2*intentBlock:]...)
		}},
		{"cut within a block", []int{1, 2}, func(b []byte) []byte { return b[:intentBlock+100] }},
		{"cut between blocks", []int{2}, func(b []byte) []byte { return b[:2*intentBlock] }},
		{"empty", []int{0, 1, 2}, func([]byte) []byte { return nil }},
		{"of zeroes", []int{0, 1, 2}, func(b []byte) []byte { clear(b); return b }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, t.TempDir(), Options{})
			x := intents(t, s, testLUN)
			if err := x.Set([]uint32{7, 40000, 70000}); err != nil {
				t.Fatal(err)
			}
			x.Close()
			full, _, _ := s.path(kindIntents, lunA)
			whole(t, full, c.spoil)
			want := bitset(testLUN, 7, 40000, 70000)
			for _, b := range c.bad {
				setBits(want, int64(b)*blockRegions, min(int64(b+1)*blockRegions, regionsOf(testLUN))-1)
			}
			if x = openIntents(t, s, testLUN); x.Unreadable() != len(c.bad) {
				t.Errorf("%d unreadable blocks, want %d", x.Unreadable(), len(c.bad))
			}
			same(t, "read", x.Dirty(), want)
			same(t, "and made whole", onDisk(t, s, testLUN), want)
		})
	}
	t.Run("another store's", func(t *testing.T) {
		s, peer := open(t, t.TempDir(), Options{}), open(t, t.TempDir(), Options{})
		x, y := intents(t, s, testLUN), intents(t, peer, testLUN)
		x.Close()
		y.Close()
		from, _, _ := peer.path(kindIntents, lunA)
		to, _, _ := s.path(kindIntents, lunA)
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		whole(t, to, func([]byte) []byte { return b })
		if x = openIntents(t, s, testLUN); x.Unreadable() != 3 || x.Count() != x.Regions() {
			t.Fatalf("%d blocks, %d regions", x.Unreadable(), x.Count())
		}
	})
	t.Run("gone", func(t *testing.T) {
		s := open(t, t.TempDir(), Options{})
		intents(t, s, testLUN).Close()
		full, _, _ := s.path(kindIntents, lunA)
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		if x := openIntents(t, s, testLUN); x.Unreadable() != 3 || x.Count() != x.Regions() {
			t.Fatalf("%d blocks, %d regions", x.Unreadable(), x.Count())
		}
	})
}

func TestIntentsGrow(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	const small, middle, large = int64(10) << 30, int64(100) << 30, int64(200) << 30
	x := intents(t, s, small)
	if err := x.Set([]uint32{2559}); err != nil {
		t.Fatal(err)
	}
	if err := x.Set([]uint32{2560}); !errors.Is(err, ErrRange) {
		t.Fatalf("beyond the end: %v", err)
	}
	if err := x.Grow(middle); err != nil {
		t.Fatal(err)
	}
	if err := x.Set([]uint32{2560}); err != nil {
		t.Fatal(err)
	}
	same(t, "within the block", onDisk(t, s, middle), bitset(middle, 2559, 2560))
	if err := x.Grow(large); err != nil {
		t.Fatal(err)
	}
	want := bitset(large, 2559, 2560)
	setBits(want, blockRegions, regionsOf(large)-1)
	same(t, "with a new block", x.Dirty(), want)
	same(t, "with a new block, on disk", onDisk(t, s, large), want)
	if err := x.Grow(small); !errors.Is(err, ErrShrink) {
		t.Fatalf("shrink: %v", err)
	}
	x.Close()
	x = openIntents(t, s, testLUN) // an expansion that a crash cut short before Grow
	want = append(want, make([]uint64, wordsFor(regionsOf(testLUN))-len(want))...)
	setBits(want, 2*blockRegions, regionsOf(testLUN)-1)
	same(t, "grown by OpenIntents", x.Dirty(), want)
	if _, err := s.OpenIntents(lunA, MaxIntentSize+1); !errors.Is(err, ErrRange) {
		t.Fatalf("too large: %v", err)
	}
}

func TestIntentsOfTheLargestLUN(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	if err := s.CreateLUN(lunA, 1<<30); err != nil { // the file need not be that long for its intents to be
		t.Fatal(err)
	}
	x := openIntents(t, s, MaxIntentSize)
	x.Clear(nil)
	last := uint32(x.Regions() - 1)
	if err := x.Set([]uint32{last}); err != nil {
		t.Fatal(err)
	}
	if got := x.Dirty(); x.Count() != 1 || got[last/64] != 1<<63 {
		t.Fatalf("%d regions", x.Count())
	}
}

func TestIntentsGoWithTheirLUN(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	x := intents(t, s, testLUN)
	full, _, _ := s.path(kindIntents, lunA)
	if err := s.DeleteLUN(lunA); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(full); !os.IsNotExist(err) {
		t.Fatalf("still there: %v", err)
	}
	if err := x.Set([]uint32{1}); err != nil {
		t.Fatalf("the open file of a deleted LUN: %v", err)
	}
	x.Close()
	intents(t, s, testLUN).Close()
	img, _, _ := s.path(kindLUN, lunA)
	if err := os.Remove(img); err != nil { // as after a deletion in another order, or by hand
		t.Fatal(err)
	}
	half := filepath.Join(filepath.Dir(full), lunB+intentSuffix+tmpSuffix)
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Close()
	open(t, dir, Options{})
	for _, p := range []string{full, half} {
		if _, err := os.Stat(p); !os.IsNotExist(err) {
			t.Fatalf("%s is still there: %v", p, err)
		}
	}
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
	if err := s.CreateLUN(lunA, testLUN); err != nil {
		t.Fatal(err)
	}
	errno = syscall.ENOSPC
	set(FaultCreate)
	if _, err := s.OpenIntents(lunA, testLUN/2); !errors.Is(err, ErrNoSpace) || s.Failed() != nil {
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

// A region is cleared, and a write without its bit is under way when it is set again: the old bit does not count.
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

// Whatever is set, cleared and flushed at once: when a Set has returned, its bit is on disk until it is cleared.
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

// hasBit reads the block of a region. The page cache may show a write half done, so an unreadable block, which counts as
// dirty, is as good as a set bit.
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

// The sequential stream sets ahead by 16 regions; parallel callers show group commit, in calls per write.
func BenchmarkIntents(b *testing.B) {
	setup := func(b *testing.B) *Intents {
		s, err := Open(b.TempDir(), testIdent, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		return intents(b, s, testLUN)
	}
	per := func(b *testing.B, x *Intents, before uint64) {
		b.ReportMetric(float64(x.Writes()-before)/float64(b.N), "writes/op")
	}
	b.Run("cold-random", func(b *testing.B) {
		x := setup(b)
		before, rnd := x.Writes(), rand.New(rand.NewPCG(1, 1))
		for i := 0; b.Loop(); i++ {
			if i%20000 == 19999 {
				x.Clear(nil)
				x.Flush()
			}
			x.Set([]uint32{uint32(rnd.Int64N(x.Regions()))})
		}
		per(b, x, before)
	})
	b.Run("cold-random-32-callers", func(b *testing.B) {
		x := setup(b)
		before := x.Writes()
		b.SetParallelism(16)
		var seed atomic.Uint64
		b.RunParallel(func(pb *testing.PB) {
			rnd := rand.New(rand.NewPCG(seed.Add(1), 1))
			for pb.Next() {
				x.Set([]uint32{uint32(rnd.Int64N(x.Regions()))})
			}
		})
		per(b, x, before)
	})
	b.Run("sequential-64KiB", func(b *testing.B) {
		x := setup(b)
		before := x.Writes()
		ahead := make([]uint32, 16)
		for i := int64(0); b.Loop(); i++ {
			off := i * (64 << 10) % (testLUN - 20*RegionSize)
			if off%RegionSize == 0 && off/RegionSize%16 == 0 {
				for j := range ahead {
					ahead[j] = uint32(off/RegionSize) + uint32(j)
				}
				x.Set(ahead)
			}
			x.SetRange(off, 64<<10)
		}
		per(b, x, before)
	})
	b.Run("hot", func(b *testing.B) {
		x := setup(b)
		before := x.Writes()
		x.SetRange(0, 64*RegionSize)
		for i := int64(0); b.Loop(); i++ {
			x.SetRange(i%64*RegionSize+4096, 4096)
		}
		per(b, x, before)
	})
}
