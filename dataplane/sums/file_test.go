package sums

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
)

const testBlocks = 40 * pageSums

func TestCheckFindsWhatIsWrong(t *testing.T) {
	f := openRAM(t, NewCache(0), newRAM(t, testBlocks*BlockSize, true), testBlocks*BlockSize)
	at := int64(pageSums - 2) // over the end of a page
	data := slices.Concat(block(1), block(2), block(3), block(4))
	must(t, f.Put(at, data))
	check := func(first int64, data []byte, want ...Fault) {
		t.Helper()
		got, err := f.Check(first, data)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Check(%d): %v, %v, want %v", first, got, err, want)
		}
		if ok, known := f.CheckCached(first, data); !known || ok != (len(want) == 0) {
			t.Errorf("CheckCached(%d): %v, %v", first, ok, known)
		}
	}
	check(at, data)
	check(at-1, slices.Concat(block(0), data))
	data[2*BlockSize+77] ^= 4
	check(at, data, Fault{at + 2, Of(block(3))})
	check(at-1, data[:BlockSize], Fault{at - 1, 0}) // a block in another's place
	must(t, f.SetBad(at+1, 1))
	check(at+1, block(2), Fault{at + 1, Bad})
	must(t, f.Zero(at, 4))
	check(at, make([]byte, 4*BlockSize))
	for _, x := range [][2]int64{{-1, 1}, {testBlocks - 1, 2}, {testBlocks, 1}, {1 << 62, 1 << 62}} {
		if err := f.Set(x[0], make([]Sum, min(x[1], 2))); !errors.Is(err, ErrRange) {
			t.Errorf("Set(%d, %d): %v", x[0], x[1], err)
		}
	}
	must(t, f.Set(3, []Sum{9})) // none of these errors is final
}

// TestAgainstModel plays random changes, flushes and losses of power, with a cache that is far too
// small, and compares with what must be.
func TestAgainstModel(t *testing.T) {
	for n := range 40 {
		t.Run(fmt.Sprint(n), func(t *testing.T) { playModel(t, rand.New(rand.NewPCG(uint64(n), 7))) })
	}
}

func playModel(t *testing.T, rnd *rand.Rand) {
	c := NewCache(0)
	c.limit = int64(2 + rnd.IntN(12))
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, c, r, testBlocks*BlockSize)
	type state struct{ flushed, now Sum }
	model := make([]state, testBlocks)
	changed := map[int64]bool{}      // since the last flush
	may := func(b int64) (x []Sum) { // what a block's sum may be after a loss of power: anything that it was since
		return []Sum{model[b].flushed, model[b].now} // of two changes the older can be there too, which the caller settles
	}
	set := func(first int64, list ...Sum) {
		for i, x := range list {
			model[first+int64(i)].now = x
			changed[first+int64(i)] = true
		}
	}
	for range 300 {
		first := rnd.Int64N(testBlocks)
		k := min(1+rnd.Int64N(40), testBlocks-first)
		if rnd.IntN(20) == 0 {
			k = min(rnd.Int64N(testBlocks), testBlocks-first)
		}
		switch x := rnd.IntN(20); {
		case x < 8:
			var data []byte
			var list []Sum
			for range min(k, 20) {
				p := block(rnd.Uint32N(50))
				data, list = append(data, p...), append(list, Of(p))
			}
			must(t, f.Put(first, data))
			set(first, list...)
		case x < 11:
			must(t, f.Zero(first, k))
			set(first, make([]Sum, k)...)
		case x < 12:
			must(t, f.SetBad(first, k))
			set(first, slices.Repeat([]Sum{Bad}, int(k))...)
		case x < 14:
			must(t, f.Flush())
			for b := range changed {
				model[b].flushed = model[b].now
			}
			clear(changed)
		case x < 15: // loss of power: blocks that were changed since the last flush are any of what they were; no other is touched
			r = r.powerLoss(rnd)
			f = openRAM(t, c, r, testBlocks*BlockSize)
			for b := range changed {
				var got [1]Sum
				must(t, f.Get(b, got[:]))
				if got[0] == Unknown {
					t.Fatalf("block %d is unknown: want one of %v", b, may(b))
				}
				model[b] = state{got[0], got[0]}
			}
			clear(changed)
		default:
			got := make([]Sum, k)
			must(t, f.Get(first, got))
			for i, x := range got {
				if b := first + int64(i); x != model[b].now {
					t.Fatalf("block %d: sum %08x, want %08x (flushed %08x)", b, x, model[b].now, model[b].flushed)
				}
			}
		}
		if s := c.Stats(); s.Pages > c.limit+s.Dirty+2*shards || s.Dirty < 0 {
			t.Fatalf("%+v", s)
		}
	}
}

// TestCacheStaysWithinItsBudget: what has changed is written out before it fills the cache, and
// what has not makes room.
func TestCacheStaysWithinItsBudget(t *testing.T) {
	c := NewCache(1 << 20)
	const blocks = 3000 * pageSums
	f := openRAM(t, c, newRAM(t, blocks*BlockSize, true), blocks*BlockSize)
	most := int64(0)
	for p := range int64(3000) {
		must(t, f.Set(p*pageSums+5, []Sum{Sum(p + 1)}))
		most = max(most, c.Stats().Pages)
	}
	if most > c.limit+shards { // each shard may have one that it cannot evict
		t.Errorf("%d pages in the cache, the limit is %d", most, c.limit)
	}
	for p := range int64(3000) {
		var got [1]Sum
		must(t, f.Get(p*pageSums+5, got[:]))
		if got[0] != Sum(p+1) {
			t.Fatalf("page %d: %d", p, got[0])
		}
	}
	if s := c.Stats(); s.Misses < 2000 || s.Pages > c.limit+shards {
		t.Errorf("%+v", s)
	}
}

// TestManyAtOnce has goroutines with blocks of their own in the same pages, while another flushes
// and a small cache evicts.
func TestManyAtOnce(t *testing.T) {
	c := NewCache(0)
	c.limit = 8
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, c, r, testBlocks*BlockSize)
	var wg, flusher sync.WaitGroup
	stop := make(chan struct{})
	flusher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := f.Flush(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	const workers = 8
	for w := range int64(workers) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 3))
			mine := map[int64]Sum{}
			for i := range 1500 {
				b := rnd.Int64N(testBlocks/workers)*workers + w
				if i%3 == 0 {
					x := Sum(rnd.Uint32N(1 << 20))
					if err := f.Set(b, []Sum{x}); err != nil {
						t.Error(err)
						return
					}
					mine[b] = x
					continue
				}
				var got [1]Sum
				if err := f.Get(b, got[:]); err != nil || got[0] != mine[b] {
					t.Errorf("block %d: %d, %v, want %d", b, got[0], err, mine[b])
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	flusher.Wait()
}

// TestReadOvertakenByZero: a page that was read before it became zero, and arrives after, is not
// believed.
func TestReadOvertakenByZero(t *testing.T) {
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, NewCache(0), r, testBlocks*BlockSize)
	must(t, f.Set(3, []Sum{3}))
	must(t, f.Flush())
	f = openRAM(t, NewCache(0), r, testBlocks*BlockSize)
	once := true
	r.late = func(op string) {
		if op == "read" && once {
			once = false
			must(t, f.Zero(0, testBlocks))
		}
	}
	for range 2 {
		var got [1]Sum
		if err := f.Get(3, got[:]); err != nil || got[0] != 0 {
			t.Errorf("sum %d, %v, want 0", got[0], err)
		}
	}
}

// TestPageBeingWrittenStays: a page that is being written is not evicted, for what would be read
// again is older than it.
func TestPageBeingWrittenStays(t *testing.T) {
	c := NewCache(0)
	c.limit = 1
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, c, r, testBlocks*BlockSize)
	c.limit = 1 << 20 // dirty pages are not written out for the sake of the budget
	must(t, f.Set(0, []Sum{7}))
	c.limit = 1
	began, end := make(chan struct{}), make(chan struct{})
	r.late = func(op string) {
		if op == "write" {
			close(began)
			<-end
		}
	}
	flushed := make(chan error)
	go func() { flushed <- f.Flush() }()
	<-began
	for n := range int64(testBlocks / pageSums) { // evicts what it may
		must(t, f.Get(n*pageSums, make([]Sum, 1)))
	}
	k := key{f, 0}
	s := c.shard(k)
	s.mu.Lock()
	there := s.pages[k] != nil
	s.mu.Unlock()
	close(end)
	must(t, <-flushed)
	if !there {
		t.Error("evicted while it was being written")
	}
}

func TestFailureIsFinal(t *testing.T) {
	broken := errors.New("broken")
	for _, op := range []string{"write", "sync", "zero"} {
		r := newRAM(t, testBlocks*BlockSize, true)
		f := openRAM(t, NewCache(0), r, testBlocks*BlockSize)
		must(t, f.Set(0, []Sum{1}))
		r.fail = func(x string) error {
			if x == op {
				return broken
			}
			return nil
		}
		var err error
		if op == "zero" {
			err = f.Zero(0, testBlocks)
		} else {
			err = f.Flush()
		}
		r.fail = nil
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", op, err)
		}
		_, cerr := f.Check(0, block(0))
		for _, err := range []error{f.Flush(), f.Set(0, []Sum{1}), f.Grow(2 * testBlocks * BlockSize), f.Adopt(AllAdopted), cerr} {
			if !errors.Is(err, broken) {
				t.Errorf("after a failed %s: %v", op, err)
			}
		}
	}
}

// TestDamagedSectorsAreUnknown: sectors that are not what was written are Unknown, and only those;
// putting a block again is enough.
func TestDamagedSectorsAreUnknown(t *testing.T) {
	r := newRAM(t, testBlocks*BlockSize, true)
	f := openRAM(t, NewCache(0), r, testBlocks*BlockSize)
	all := make([]Sum, testBlocks)
	for i := range all {
		all[i] = Sum(i + 1)
	}
	must(t, f.Set(0, all))
	must(t, f.Flush())
	sector := func(n int64) []byte { return r.now[pageOffset(0)+n*sectorSize:][:sectorSize] }
	const flipped, swapped, unreadable = 3, 17, 100
	sector(flipped)[200] ^= 1
	copy(sector(swapped), sector(swapped+8)) // what belongs elsewhere
	cut := pageOffset(39) + 3*sectorSize
	c := NewCache(0)
	f = openRAM(t, c, r, testBlocks*BlockSize)
	r.mu.Lock()
	r.now = r.now[:cut]
	r.mu.Unlock()
	got := make([]Sum, testBlocks)
	must(t, f.Get(0, got))
	for i, x := range got {
		want := all[i]
		switch n := i / sectorSums; {
		case n == flipped, n == swapped, n >= 39*pageSectors+3:
			want = Unknown
		}
		if x != want {
			t.Fatalf("block %d: %08x, want %08x", i, x, want)
		}
	}
	if s := c.Stats(); s.LostSectors != 2+5 {
		t.Errorf("%d sectors lost, want 7", s.LostSectors)
	}
	must(t, f.Put(flipped*sectorSums+4, block(9)))
	must(t, f.Flush())
	f = openRAM(t, NewCache(0), r, testBlocks*BlockSize)
	if faults, err := f.Check(flipped*sectorSums+4, block(9)); err != nil || len(faults) > 0 {
		t.Errorf("put again: %v, %v", faults, err)
	}
	if faults, err := f.Check(flipped*sectorSums+5, block(9)); err != nil || !slices.Equal(faults, []Fault{{flipped*sectorSums + 5, Unknown}}) {
		t.Errorf("its neighbour: %v, %v", faults, err)
	}
	r.fail = func(op string) error { return os.ErrInvalid }
	f = nil
	x, err := open(NewCache(0), "ram", r, testOwner, testBlocks*BlockSize)
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("a header that cannot be read: %v, %v", x, err)
	}
}
