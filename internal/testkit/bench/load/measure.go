package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/prometheus/procfs"
)

// Process is one whose CPU time is measured with a load.
type Process struct {
	Name string
	PID  int
}

// Sample is one measurement.
type Sample struct {
	Rate float64 // operations a second
	Hist *Histogram
	CPU  map[string]time.Duration // of each process, per operation
}

// Measure runs a workload for d, after a warm-up of a fifth of that, and takes the CPU time of
// processes meanwhile.
func Measure(ctx context.Context, w Workload, d time.Duration, procs []Process, devices ...Device) (Sample, error) {
	r, err := Start(w, devices...)
	if err != nil {
		return Sample{}, err
	}
	err = r.Pause(ctx, d/5)
	var s Sample
	if err == nil {
		s, err = r.Sample(ctx, d, procs)
	}
	return s, errors.Join(err, r.Stop())
}

// A measurement that has seen fewer operations than minOperations continues for up to longer times
// its length: a disk may take its time.
const (
	minOperations = 20
	longer        = 10
)

// Sample measures a load that runs already.
func (r *Runner) Sample(ctx context.Context, d time.Duration, procs []Process) (Sample, error) {
	return r.SampleWhile(procs, func() error {
		before, until := r.done.Load(), time.Now().Add(longer*d)
		err := r.Pause(ctx, d)
		for err == nil && r.done.Load()-before < minOperations && time.Now().Before(until) {
			err = r.Pause(ctx, d/10)
		}
		return err
	})
}

// SampleWhile measures a load that runs already for as long as f runs.
func (r *Runner) SampleWhile(procs []Process, f func() error) (Sample, error) {
	before, err := cpuTimes(procs)
	if err != nil {
		return Sample{}, err
	}
	s := Sample{Hist: new(Histogram), CPU: map[string]time.Duration{}}
	r.hist.Store(s.Hist)
	n0, t0 := r.done.Load(), time.Now()
	err = f()
	n, t := r.done.Load()-n0, time.Since(t0)
	r.hist.Store(new(Histogram))
	if err != nil {
		return s, err
	}
	after, err := cpuTimes(procs)
	switch {
	case err != nil:
		return s, err
	case n == 0:
		return s, ErrNothing
	}
	s.Rate = float64(n) / t.Seconds()
	for i, p := range procs {
		s.CPU[p.Name] += (after[i] - before[i]) / time.Duration(n)
	}
	return s, nil
}

// ErrNothing is that of a measurement in which no operation ended well.
var ErrNothing = errors.New("load: no operation completed")

// cpuTimes is user plus system time of each process, threads included.
func cpuTimes(procs []Process) ([]time.Duration, error) {
	list := make([]time.Duration, len(procs))
	for i, p := range procs {
		proc, err := procfs.NewProc(p.PID)
		if err != nil {
			return nil, fmt.Errorf("CPU time of %s: %w", p.Name, err)
		}
		stat, err := proc.Stat()
		if err != nil {
			return nil, fmt.Errorf("CPU time of %s: %w", p.Name, err)
		}
		list[i] = time.Duration(stat.CPUTime() * float64(time.Second))
	}
	return list, nil
}

const fillBlock = 1 << 20

// Fill writes the whole device once with random data and reads it back: a benchmark of wrong data
// is worth nothing.
func Fill(ctx context.Context, d Device) error {
	buf := make([]byte, fillBlock)
	err := eachBlock(ctx, d, func(want []byte, off int64) error {
		_, err := d.WriteAt(ctx, want, off)
		return err
	})
	if err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	if err := d.Flush(ctx); err != nil {
		return fmt.Errorf("fill: flush: %w", err)
	}
	return eachBlock(ctx, d, func(want []byte, off int64) error {
		got := buf[:len(want)]
		if _, err := d.ReadAt(ctx, got, off); err != nil {
			return fmt.Errorf("verify: %w", err)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("verify: the MiB at %d reads back differently from what was written", off)
		}
		return nil
	})
}

func eachBlock(ctx context.Context, d Device, f func([]byte, int64) error) error {
	src := rand.NewChaCha8([32]byte{42})
	want := make([]byte, fillBlock)
	for off, size := int64(0), d.Size(); off < size; off += fillBlock {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		b := want[:min(fillBlock, size-off)]
		_, _ = src.Read(b)
		if err := f(b, off); err != nil {
			return err
		}
	}
	return nil
}
