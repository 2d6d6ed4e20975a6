package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

// workload is one access pattern.
type workload struct {
	name   string
	op     initiator.Op
	block  int // bytes
	depth  int
	random bool
}

// unit is what its rate is given in.
func (w workload) unit() string {
	if w.random {
		return "IOPS"
	}
	return "MiB/s"
}

// sample is one measurement.
type sample struct {
	rate    float64 // in workload.unit
	latency time.Duration
	cpuPer  time.Duration // of the target, per operation
}

// runner keeps depth requests in flight on a device until told to stop. Buffers and requests are reused, so that the client costs as
// little as it can: it shares the machine with the target.
type runner struct {
	d      *initiator.Device
	w      workload
	blocks int64
	next   atomic.Int64
	left   atomic.Int32
	done   atomic.Int64
	stop   atomic.Bool
	failed atomic.Pointer[error]
	marked atomic.Int64 // ns since begun of the last event; 0: none yet
	slow   atomic.Int64 // ns: the slowest operation that ended after it
	begun  time.Time
	ended  chan struct{}
	ios    []loadIO
}

type loadIO struct {
	initiator.IO
	r   *runner
	rng *rand.Rand
	at  time.Duration // submitted, since runner.begun
}

func newRunner(d *initiator.Device, w workload) *runner {
	r := &runner{d: d, w: w, blocks: d.Size() / int64(w.block), begun: time.Now(), ended: make(chan struct{}), ios: make([]loadIO, w.depth)}
	fill := rand.NewChaCha8([32]byte{1})
	for i := range r.ios {
		x := &r.ios[i]
		x.r, x.rng = r, rand.New(rand.NewPCG(uint64(i), 7))
		x.Op, x.Buf, x.User, x.Done = w.op, make([]byte, w.block), x, loadDone
		_, _ = fill.Read(x.Buf)
	}
	return r
}

func (r *runner) start() {
	r.left.Store(int32(len(r.ios)))
	for i := range r.ios {
		r.submit(&r.ios[i])
	}
}

func (r *runner) submit(x *loadIO) {
	if r.w.random {
		x.Off = x.rng.Int64N(r.blocks) * int64(r.w.block)
	} else {
		x.Off = (r.next.Add(1) - 1) % r.blocks * int64(r.w.block)
	}
	x.at = time.Since(r.begun)
	if err := r.d.Submit(&x.IO); err != nil {
		r.end(err)
	}
}

func loadDone(io *initiator.IO) {
	x := io.User.(*loadIO)
	r := x.r
	if io.Err != nil {
		r.end(io.Err)
		return
	}
	r.note(x)
	r.done.Add(1)
	if r.stop.Load() {
		r.end(nil)
		return
	}
	r.submit(x)
}

// mark begins an event; note takes the time of an operation that ends after it; worst is the slowest of those.
func (r *runner) mark() {
	r.slow.Store(0)
	r.marked.Store(int64(time.Since(r.begun)))
}

func (r *runner) note(x *loadIO) {
	if r.marked.Load() == 0 {
		return
	}
	t := int64(time.Since(r.begun) - x.at)
	for old := r.slow.Load(); t > old && !r.slow.CompareAndSwap(old, t); old = r.slow.Load() {
	}
}

func (r *runner) worst() time.Duration { return time.Duration(r.slow.Load()) }

func (r *runner) end(err error) {
	if err != nil {
		r.failed.CompareAndSwap(nil, &err)
		r.stop.Store(true)
	}
	if r.left.Add(-1) == 0 {
		close(r.ended)
	}
}

// measure runs a workload for d after a warm-up of a tenth of that.
func measure(ctx context.Context, s *served, w workload, d time.Duration) (sample, error) {
	r := newRunner(s.dev, w)
	r.start()
	if err := pause(ctx, r, d/10); err != nil {
		return sample{}, err
	}
	cpu0, err := cpuTime(s.pids)
	if err != nil {
		return sample{}, err
	}
	n0, t0 := r.done.Load(), time.Now()
	if err := pause(ctx, r, d); err != nil {
		return sample{}, err
	}
	n, t := r.done.Load()-n0, time.Since(t0)
	cpu1, err := cpuTime(s.pids)
	r.stop.Store(true)
	<-r.ended
	switch {
	case err != nil:
		return sample{}, err
	case r.failed.Load() != nil:
		return sample{}, *r.failed.Load()
	case n == 0:
		return sample{}, errors.New("no operation completed")
	}
	x := sample{rate: float64(n) / t.Seconds(), latency: t * time.Duration(w.depth) / time.Duration(n), cpuPer: (cpu1 - cpu0) / time.Duration(n)}
	if !w.random {
		x.rate *= float64(w.block) / (1 << 20)
	}
	return x, nil
}

// pause lets a runner run; it returns early when the runner fails.
func pause(ctx context.Context, r *runner, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.ended:
		if p := r.failed.Load(); p != nil {
			return *p
		}
		return errors.New("load ended by itself")
	case <-ctx.Done():
		r.stop.Store(true)
		<-r.ended
		return context.Cause(ctx)
	}
}

// prefill writes the whole device once with random data.
func prefill(ctx context.Context, s *served) error {
	const block = 1 << 20
	size := s.dev.Size()
	src := rand.NewChaCha8([32]byte{42})
	buf := make([]byte, block)
	for off := int64(0); off < size; off += block {
		_, _ = src.Read(buf)
		if _, err := s.dev.WriteAt(ctx, buf, off); err != nil {
			return fmt.Errorf("fill %s: %w", s.name, err)
		}
	}
	if err := s.dev.Flush(ctx); err != nil {
		return err
	}
	return verify(ctx, s, size)
}

// verify reads everything back: a benchmark of wrong data is worth nothing.
func verify(ctx context.Context, s *served, size int64) error {
	const block = 1 << 20
	src := rand.NewChaCha8([32]byte{42})
	want, got := make([]byte, block), make([]byte, block)
	for off := int64(0); off < size; off += block {
		_, _ = src.Read(want)
		if _, err := s.dev.ReadAt(ctx, got, off); err != nil {
			return fmt.Errorf("verify %s: %w", s.name, err)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("verify %s: the MiB at %d reads back differently from what was written", s.name, off)
		}
	}
	return nil
}
