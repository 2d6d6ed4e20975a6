package load

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

// memory is a device that keeps its blocks in memory and answers each request after a time, as a
// disk does.
type memory struct {
	mu     sync.Mutex
	data   []byte
	delay  time.Duration
	broken atomic.Bool
	counts [6]atomic.Int64 // by initiator.Op
	flying atomic.Int64
	most   atomic.Int64
}

var errBroken = errors.New("broken")

func (m *memory) Submit(io *initiator.IO) error {
	n := m.flying.Add(1)
	for old := m.most.Load(); n > old && !m.most.CompareAndSwap(old, n); old = m.most.Load() {
	}
	m.counts[io.Op].Add(1)
	time.AfterFunc(m.delay, func() {
		io.Err = nil
		if m.broken.Load() {
			io.Err = errBroken
		}
		m.flying.Add(-1)
		io.Done(io)
	})
	return nil
}

func (m *memory) Size() int64                 { return int64(len(m.data)) }
func (m *memory) Flush(context.Context) error { return nil }
func (m *memory) Close(context.Context) error { return nil }
func (m *memory) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(p, m.data[off:]), nil
}

func (m *memory) WriteAt(_ context.Context, p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(m.data[off:], p), nil
}

func newMemory(delay time.Duration) *memory { return &memory{data: make([]byte, 4<<20), delay: delay} }

func TestMeasureCountsOperationsAndCPU(t *testing.T) {
	a, b := newMemory(time.Millisecond), newMemory(time.Millisecond)
	s, err := Measure(t.Context(), Workload{Reads: 70, Block: 4096, Depth: 8}, 300*time.Millisecond, []Process{{"self", os.Getpid()}}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	reads, writes := a.counts[initiator.OpRead].Load()+b.counts[initiator.OpRead].Load(), a.counts[initiator.OpWrite].Load()+b.counts[initiator.OpWrite].Load()
	if s.Rate <= 0 || s.Rate > 8000 || s.Hist.Count() == 0 || s.Hist.Quantile(0.5) < time.Millisecond || reads <= writes || writes == 0 {
		t.Errorf("%.0f/s, %d counted, median %v, %d reads, %d writes", s.Rate, s.Hist.Count(), s.Hist.Quantile(0.5), reads, writes)
	}
	if a.most.Load() != 4 || b.most.Load() != 4 || a.flying.Load()+b.flying.Load() != 0 {
		t.Errorf("in flight: %d and %d at most, %d and %d at the end; want 4, 4, 0, 0", a.most.Load(), b.most.Load(), a.flying.Load(), b.flying.Load())
	}
}

// A write that is followed by a flush is one operation, which takes as long as both.
func TestWriteAndFlush(t *testing.T) {
	m := newMemory(2 * time.Millisecond)
	s, err := Measure(t.Context(), Workload{Block: 4096, Depth: 1, Flush: true}, 100*time.Millisecond, nil, m)
	w, f := m.counts[initiator.OpWrite].Load(), m.counts[initiator.OpFlush].Load()
	if err != nil || s.Hist.Quantile(0) < 4*time.Millisecond || w != f || w == 0 {
		t.Errorf("%v: shortest %v, %d writes, %d flushes", err, s.Hist.Quantile(0), w, f)
	}
}

// A paced load counts latency from when an operation was due: a device that is too slow cannot hide
// behind a load that waits for it.
func TestPacedLoadCountsFromTheDueTime(t *testing.T) {
	m := newMemory(0)
	r, err := Start(Workload{Block: 4096, Depth: 4, Rate: 500}, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.More(t.Context(), 100, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if n, most := r.Done(), 500*time.Since(r.begun).Seconds()+2; float64(n) > most {
		t.Errorf("%d operations, %.0f were due", n, most)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	slow := newMemory(20 * time.Millisecond)
	r, err = Start(Workload{Block: 4096, Depth: 1, Rate: 1000}, slow)
	if err != nil {
		t.Fatal(err)
	}
	r.Mark()
	if err := r.More(t.Context(), 10, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if r.Worst() < 100*time.Millisecond {
		t.Errorf("ten operations of 20 ms were due within 10 ms, and the longest took %v", r.Worst())
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
}

// A rate that cannot be kept says nothing of the device's latency, unless it counts from the
// submission.
func TestPacedFromSubmission(t *testing.T) {
	m := newMemory(20 * time.Millisecond)
	s, err := Measure(t.Context(), Workload{Block: 4096, Depth: 1, Rate: 10_000, Submitted: true}, 400*time.Millisecond, nil, m)
	if err != nil || s.Hist.Quantile(0) < 20*time.Millisecond {
		t.Fatalf("%v, shortest %v", err, s.Hist.Quantile(0))
	}
	due, err := Measure(t.Context(), Workload{Block: 4096, Depth: 1, Rate: 10_000}, 400*time.Millisecond, nil, m)
	if err != nil || due.Hist.Quantile(0.5) < 2*s.Hist.Quantile(0.5) {
		t.Errorf("%v: median %v from when they were due, %v from the submission", err, due.Hist.Quantile(0.5), s.Hist.Quantile(0.5))
	}
}

func TestErrorsEndAMeasurement(t *testing.T) {
	m := newMemory(0)
	m.broken.Store(true)
	if _, err := Measure(t.Context(), Workload{Block: 4096, Depth: 2}, time.Minute, nil, m); !errors.Is(err, errBroken) {
		t.Errorf("a load on a broken device ends with %v", err)
	}
	r, err := Start(Workload{Block: 4096, Depth: 2, Tolerant: true}, m)
	if err != nil {
		t.Fatal(err)
	}
	for r.Errors() < 3 {
		if err := r.Pause(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	m.broken.Store(false)
	if err := r.More(t.Context(), 5, 20*time.Second); err != nil {
		t.Errorf("a tolerant load does not go on: %v", err)
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	var done, errs int64
	for _, p := range r.Series().Points() {
		done, errs = done+p.Done, errs+p.Errors
	}
	if done != r.Done() || errs != r.Errors() {
		t.Errorf("the series has %d operations and %d errors, the load %d and %d", done, errs, r.Done(), r.Errors())
	}
	for _, w := range []Workload{{Depth: 1}, {Block: 4096}, {Block: 8 << 20, Depth: 1}, {Block: 4096, Depth: 1, Reads: 101}} {
		if _, err := Start(w, m); err == nil {
			t.Errorf("%+v is taken for a workload", w)
		}
	}
}

// TestWorstCountsFromTheMark: only operations that end after the mark count, with the time from
// before it included; and those in flight.
func TestWorstCountsFromTheMark(t *testing.T) {
	m := newMemory(30 * time.Millisecond)
	r, err := Start(Workload{Block: 4096, Depth: 1}, m)
	if err != nil {
		t.Fatal(err)
	}
	if r.Worst() != 0 {
		t.Error("a worst operation without an event")
	}
	if err := r.More(t.Context(), 1, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	r.Mark()
	for r.Worst() < 20*time.Millisecond { // the operation that is in flight
		if err := r.Pause(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	if r.Worst() < 30*time.Millisecond {
		t.Errorf("the longest operation took %v", r.Worst())
	}
}

func TestFillWritesEveryBlock(t *testing.T) {
	m := newMemory(0)
	if err := Fill(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	liar := &liar{m}
	if err := Fill(t.Context(), liar); err == nil {
		t.Error("data that reads back differently is not seen")
	}
}

// liar writes something else than it was given.
type liar struct{ *memory }

func (l *liar) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := l.memory.WriteAt(ctx, p, off)
	l.data[off+100]++
	return n, err
}
