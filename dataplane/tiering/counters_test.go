package tiering

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

const lunSize = 1 << 30

func total(all []Count) (reads, writes int) {
	for _, c := range all {
		reads, writes = reads+int(c.Reads), writes+int(c.Writes)
	}
	return reads, writes
}

func TestCountersCountByExtent(t *testing.T) {
	c := NewCounters(lunSize)
	c.Read(0, 8<<10)
	c.Read(ExtentSize-4096, 8192) // two extents
	c.Write(600*ExtentSize, 4096) // beyond the end
	c.Write(lunSize-4096, 4096)
	c.Read(-1, 5)
	c.Read(5, 0)
	want := []Count{{0, 2, 0}, {1, 1, 0}, {lunSize/ExtentSize - 1, 0, 1}}
	if got := c.Take(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := c.Take(); len(got) != 0 {
		t.Errorf("a second time: %v", got)
	}
}

// A scan counts its first half MiB and no more, also with requests that overtake each other, and
// beside random reads that take turns with it.
func TestScanDoesNotHeat(t *testing.T) {
	for name, depth := range map[string]int{"one at a time": 1, "32 at a time": 32} {
		t.Run(name, func(t *testing.T) {
			c := NewCounters(lunSize)
			r := rand.New(rand.NewPCG(1, 2))
			const size = 16 << 10
			var scan []int64
			for off := int64(0); off < lunSize; off += size {
				scan = append(scan, off)
			}
			for i := sequence/size + depth; i+depth < len(scan); i += depth { // the beginning is in order
				r.Shuffle(depth, func(x, y int) { scan[i+x], scan[i+y] = scan[i+y], scan[i+x] })
			}
			random := 0
			for i, off := range scan {
				c.Read(off, size)
				if i%16 == 0 {
					c.Read(r.Int64N(lunSize/size)*size, size)
					random++
				}
			}
			reads, _ := total(c.Take())
			if most := random + sequence/size + 8; reads > most || reads < random*9/10 {
				t.Errorf("%d reads were counted, %d were random", reads, random)
			}
		})
	}
}

// Random reads of a small hot range count, although many of them lie near the end of another one.
func TestSmallHotRangeHeats(t *testing.T) {
	c := NewCounters(lunSize)
	r := rand.New(rand.NewPCG(3, 4))
	const n = 100_000
	for range n {
		c.Read(r.Int64N(1000)*8192, 8192)
	}
	if reads, _ := total(c.Take()); reads < n*99/100 {
		t.Errorf("%d of %d random reads were counted", reads, n)
	}
}

// What is read again and again near the end of a sequence that has ended counts.
func TestEndOfASequenceHeats(t *testing.T) {
	c := NewCounters(lunSize)
	for off := int64(0); off < 4*ExtentSize; off += 64 << 10 {
		c.Read(off, 64<<10)
	}
	c.Take()
	const n = 1000
	for i := range int64(n) {
		c.Read(4*ExtentSize-4096-i%64*8192, 4096)
	}
	if reads, _ := total(c.Take()); reads < n*9/10 {
		t.Errorf("%d of %d reads were counted", reads, n)
	}
}

func TestCountersAreSafe(t *testing.T) {
	c := NewCounters(lunSize)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 5))
			for range 10_000 {
				c.Write(r.Int64N(lunSize/4096)*4096, 4096)
			}
		})
	}
	sum := 0
	for range 100 {
		_, n := total(c.Take())
		sum += n
	}
	wg.Wait()
	_, n := total(c.Take())
	if sum += n; sum < 39_900 || sum > 40_000 {
		t.Errorf("%d of 40,000 writes were counted", sum)
	}
}

func BenchmarkCounters(b *testing.B) {
	c := NewCounters(lunSize)
	r := rand.New(rand.NewPCG(3, 4))
	for b.Loop() {
		c.Read(r.Int64N(lunSize/8192)*8192, 8192)
	}
}
