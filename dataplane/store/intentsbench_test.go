package store

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// The sequential stream sets ahead by 16 regions; parallel callers show group commit, in calls per
// write.
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
