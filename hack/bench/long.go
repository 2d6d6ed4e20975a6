package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// longTime is for how long a load goes on: long enough for many checkpoints.
const longTime = 10 * time.Minute

// bareTime is for how long the disk is written to without anything between.
const bareTime = 2 * time.Minute

func longCases() []testCase {
	return []testCase{{name: "mirrored_write_4k_qd16_10m", asked: true, uses: []string{sysDefault}, run: longWrites}}
}

// longWrites writes for ten minutes, in which nothing else happens, and then as many threads write
// to a file of a filesystem on the same disk, without anything between. That says which of the
// slowest writes are the disk's.
func longWrites(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	s, err := b.system(ctx, sysDefault)
	if err != nil {
		return nil, err
	}
	r, err := load.Start(load.Workload{Block: 4096, Depth: 16}, s.Device)
	if err != nil {
		return nil, err
	}
	x, err := r.Sample(ctx, longTime, nil)
	if err = errors.Join(err, r.Stop()); err != nil {
		return nil, err
	}
	bare, err := b.bareWrites(ctx, 16, b.o.size, bareTime)
	if err != nil {
		return nil, err
	}
	f := results.Figures{Name: s.Name, Flags: s.Flags}
	f.Add(x.Rate, x)
	row := results.Alone(c.name, "IOPS", &f, nil)
	ms := func(h *load.Histogram, q float64) float64 { return float64(h.Quantile(q)) / float64(time.Millisecond) }
	row.Values = map[string]float64{"p50_ms": ms(x.Hist, 0.5), "p999_ms": ms(x.Hist, 0.999), "worst_ms": ms(x.Hist, 1),
		"bare_p50_ms": ms(bare, 0.5), "bare_p999_ms": ms(bare, 0.999), "bare_worst_ms": ms(bare, 1)}
	row.Note = fmt.Sprintf("%v without an event; bare: 16 threads that write 4 KiB blocks into a file of an XFS on the same disk, without a flush", longTime)
	return []results.Row{row}, nil
}

// bareWrites writes blocks of 4 KiB at random into a file.
func (b *bench) bareWrites(ctx context.Context, threads int, size int64, d time.Duration) (_ *load.Histogram, err error) {
	dir, err := b.rig.Filesystem(ctx, "bare", rig.XFS, 2*size+1<<30)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, "bare"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	chunk := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(chunk)) {
		if _, err := file.WriteAt(chunk, off); err != nil {
			return nil, err
		}
	}
	if err := file.Sync(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	h := new(load.Histogram)
	errs := make([]error, threads)
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			rnd, buf := rand.New(rand.NewPCG(uint64(i), 3)), make([]byte, 4096)
			for ctx.Err() == nil && errs[i] == nil {
				begun := time.Now()
				_, errs[i] = file.WriteAt(buf, rnd.Int64N(size/4096)*4096)
				h.Add(time.Since(begun))
			}
		})
	}
	wg.Wait()
	return h, errors.Join(errs...)
}
