package sums

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

// BenchmarkCheck is what a read pays when its checksums are in the cache, for reads of several
// sizes, by several goroutines.
func BenchmarkCheck(b *testing.B) {
	const size = 1 << 30
	f := openRAM(b, NewCache(64<<20), newRAM(b, size, true), size)
	for _, n := range []int64{4 << 10, 64 << 10, 1 << 20} {
		data := make([]byte, n)
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) {
			b.SetBytes(n)
			b.RunParallel(func(p *testing.PB) {
				r := rand.New(rand.NewPCG(1, rand.Uint64()))
				for p.Next() {
					if faults, err := f.Check(r.Int64N((size-n)/BlockSize), data); err != nil || faults != nil {
						b.Fatal(faults, err)
					}
				}
			})
		})
	}
}

// BenchmarkPut is what a write pays, with the write-out of what the budget has no room for.
func BenchmarkPut(b *testing.B) {
	for _, budget := range []int64{64 << 20, 1 << 20} {
		b.Run(fmt.Sprintf("budget%dMiB", budget>>20), func(b *testing.B) {
			const size = 16 << 30
			path := filepath.Join(b.TempDir(), "sums")
			must(b, Create(path, testOwner, size, true))
			f, err := Open(NewCache(budget), path, testOwner, size)
			must(b, err)
			defer f.Close()
			data := block(1)
			r := rand.New(rand.NewPCG(1, 2))
			b.SetBytes(BlockSize)
			for b.Loop() {
				must(b, f.Put(r.Int64N(size/BlockSize), data))
			}
		})
	}
}

// BenchmarkFlush is a checkpoint after 1,000 random writes.
func BenchmarkFlush(b *testing.B) {
	const size = 16 << 30
	path := filepath.Join(b.TempDir(), "sums")
	must(b, Create(path, testOwner, size, true))
	f, err := Open(NewCache(64<<20), path, testOwner, size)
	must(b, err)
	defer f.Close()
	r := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		for range 1000 {
			must(b, f.Set(r.Int64N(size/BlockSize), []Sum{Sum(r.Uint32())}))
		}
		must(b, f.Flush())
	}
}
