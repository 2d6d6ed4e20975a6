package store

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestIntentsOfANewLUNAreDirtyUntilCleared(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	if _, err := s.Default().OpenIntents(lunA, testLUN); !errors.Is(err, ErrNotFound) {
		t.Fatalf("without a LUN: %v", err)
	}
	if err := s.Default().CreateLUN(lunA, testLUN, NoBirth); err != nil {
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
	full, _, _ := s.Default().path(kindIntents, lunA)
	st, err := os.Stat(full)
	if err != nil {
		t.Fatal(err)
	}
	if got := st.Sys().(*syscall.Stat_t).Blocks * 512; st.Size() != 3*intentBlock || got < st.Size() {
		t.Fatalf("%d bytes, %d of them allocated", st.Size(), got)
	}
}

// What is torn, garbled, misplaced, of another LUN, of another node or gone is dirty: all of that
// block, no other.
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
			full, _, _ := s.Default().path(kindIntents, lunA)
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
		from, _, _ := peer.Default().path(kindIntents, lunA)
		to, _, _ := s.Default().path(kindIntents, lunA)
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
		full, _, _ := s.Default().path(kindIntents, lunA)
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
	if _, err := s.Default().OpenIntents(lunA, MaxIntentSize+1); !errors.Is(err, ErrRange) {
		t.Fatalf("too large: %v", err)
	}
}

func TestIntentsOfTheLargestLUN(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	if err := s.Default().CreateLUN(lunA, 1<<30, NoBirth); err != nil { // the file need not be that long for its intents to be
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
	full, _, _ := s.Default().path(kindIntents, lunA)
	if err := s.Default().DeleteLUN(lunA); err != nil {
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
	img, _, _ := s.Default().path(kindLUN, lunA)
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

// Bits of a new LUN are all set until they are cleaned, which the next process sees too.
func TestCleanIntentsIsDurable(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	must(t, s.Default().CreateLUN(lunA, testLUN, NoBirth))
	if x := openIntents(t, s, testLUN); x.Count() != x.Regions() {
		t.Fatalf("%d of %d bits are set at first", x.Count(), x.Regions())
	} else {
		must(t, x.Close())
	}
	must(t, s.Default().CleanIntents(lunA, testLUN))
	same(t, "after it", onDisk(t, s, testLUN), bitset(testLUN))
}
