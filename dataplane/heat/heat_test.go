package heat

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"
)

const halving = int64(1) << tickBits

func extents(hot []Hot) map[int64]uint64 {
	out := map[int64]uint64{}
	for _, h := range hot {
		out[h.Extent] = h.Reads
	}
	return out
}

// What is read often is found among far more that is read now and then, in the order of its reads.
func TestHottestIsFound(t *testing.T) {
	var r Record
	rnd := rand.New(rand.NewPCG(1, 2))
	const hot, reads = 48, 200_000
	for range reads {
		x := rnd.Int64N(1 << 28) // any extent of 256 TiB
		if rnd.IntN(2) == 0 {
			x = rnd.Int64N(hot) * 1_000_003
		}
		r.Read(x*Extent+rnd.Int64N(Extent-4096), 4096, 5)
	}
	got := r.Hottest(5, 64)
	found := extents(got)
	for i := range int64(hot) {
		if found[i*1_000_003] == 0 {
			t.Errorf("extent %d of those that were read most is not found", i)
		}
	}
	for i := 1; i < len(got); i++ {
		if got[i].Reads > got[i-1].Reads {
			t.Fatalf("the order is wrong: %v", got)
		}
	}
	if n := len(r.Hottest(5, 7)); n != 7 {
		t.Errorf("%d extents, want 7", n)
	}
	if len(r.Hottest(5, -1)) != 0 {
		t.Error("extents although none were asked for")
	}
}

// A scan of the whole LUN, as by a backup, does not displace what is read again and again.
func TestScanDisplacesNothing(t *testing.T) {
	var r Record
	var hot []int64 // they fill a set
	for x := int64(0); len(hot) < ways; x++ {
		if hash(uint64(x))%sets == 7 {
			hot = append(hot, x)
		}
	}
	for range 1000 {
		for _, x := range hot {
			r.Read(x*Extent, 4096, 5)
		}
	}
	for x := int64(1 << 20); x < 1<<20+10_000; x++ {
		r.Read(x*Extent, Extent, 5)
	}
	found := extents(r.Hottest(5, ways))
	for _, x := range hot {
		if found[x] < 100 {
			t.Errorf("extent %d has %d reads left", x, found[x])
		}
	}
}

// Counts are halved with time, and what is read no more gives way to what is.
func TestRecordForgets(t *testing.T) {
	var r Record
	for range 64 {
		r.Read(3*Extent, 4096, 0)
	}
	for age, want := range map[int64]uint64{0: 64, 1: 32, 3: 8, 5: 2, 6: 0, 40: 0} {
		if got := extents(r.Hottest(age*halving, 10))[3]; got != want {
			t.Errorf("after %v: %d reads, want %d", time.Duration(age*halving), got, want)
		}
	}
	r.Read(3*Extent, 4096, 2*halving)
	if got := extents(r.Hottest(2*halving, 10))[3]; got != 17 {
		t.Errorf("%d reads, want a quarter of 64 and one", got)
	}
	for x := range int64(sets * ways) { // all slots are taken, by what is not read any more
		for range 1000 {
			r.Read((x+100)*Extent, 4096, 3*halving)
		}
	}
	late := 40 * halving
	for range 3 {
		r.Read(9*Extent, 4096, late)
	}
	if got := r.Hottest(late, 10); len(got) != 1 || got[0] != (Hot{9, 3}) {
		t.Errorf("%v", got)
	}
}

// A read counts for each extent that it touches, and nonsense for none.
func TestReadOfSeveralExtents(t *testing.T) {
	var r Record
	for _, bad := range [][2]int64{{-1, 4096}, {0, 0}, {4096, -4096}} {
		r.Read(bad[0], bad[1], 5)
	}
	if r.table.Load() != nil {
		t.Error("nonsense takes memory")
	}
	for range 2 {
		r.Read(5*Extent-512, 1024, 5)
		r.Read(1<<62, 4096, 5) // beyond every LUN
	}
	if got := extents(r.Hottest(5, 10)); len(got) != 2 || got[4] != 2 || got[5] != 2 {
		t.Errorf("%v", got)
	}
	for range 2 {
		r.Read(100*Extent, 1<<40, 5)
	}
	if n := len(r.Hottest(5, 1000)); n != 2+spanMax {
		t.Errorf("%d extents", n)
	}
}

// Its memory is what the documentation says, and nothing before the first read.
func TestRecordIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(table{}); n != 2048 {
		t.Errorf("%d bytes", n)
	}
	var r Record
	if r.Hottest(5, 10) != nil || r.table.Load() != nil {
		t.Error("a LUN that nobody reads has a table")
	}
	var now int64
	if n := testing.AllocsPerRun(1000, func() { now++; r.Read(now<<20, 4096, now) }); n != 0 {
		t.Errorf("a read allocates %v times", n)
	}
}

// Goroutines that read at once lose few reads, and find what is hot.
func TestReadsAtOnce(t *testing.T) {
	var r Record
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 20_000 {
				r.Read(rnd.Int64N(20)*Extent, 4096, int64(i))
				if i%1000 == 0 {
					r.Hottest(int64(i), 64)
				}
			}
		})
	}
	wg.Wait()
	var sum uint64
	got := r.Hottest(0, 64)
	for _, h := range got {
		sum += h.Reads
	}
	if len(got) != 20 || sum > 80_000 || sum < 20_000 {
		t.Errorf("%d reads of %d extents", sum, len(got))
	}
}

func BenchmarkRead(b *testing.B) {
	for name, spread := range map[string]int64{"one extent": 1, "64 extents": 64, "a million extents": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			var r Record
			b.RunParallel(func(p *testing.PB) {
				x := uint64(1)
				for p.Next() {
					x = x*6364136223846793005 + 1442695040888963407
					r.Read(int64(x>>33)%spread*Extent, 4096, 5)
				}
			})
		})
	}
}
