package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/ledger"
)

// memory is a target whose writes can be held back or refused: the behaviour of a disk, in memory.
type memory struct {
	mu   sync.Mutex
	data []byte
	gate chan struct{} // if set, writes wait for it
	held int           // writes that wait
	err  error
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	gate := m.gate
	if gate != nil {
		m.held++
	}
	m.mu.Unlock()
	if gate != nil {
		<-gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return 0, m.err
	}
	return copy(m.data[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(p, m.data[off:]), nil
}
func (m *memory) Sync() error  { return nil }
func (m *memory) Close() error { return nil }

func run(t *testing.T, blocks int) (*memory, *Stream, context.Context) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	m := &memory{data: make([]byte, 2*blocks*ledger.BlockSize)}
	s := NewStream("vol", m, NewMeter("fill"), 9, 8, 1, Region{0, blocks})
	s.Start()
	if err := Until(ctx, []*Stream{s}, func() bool { return s.Ledger.Written() == blocks && s.meter.Acked() > int64(2*blocks) }); err != nil {
		t.Fatal(err)
	}
	return m, s, ctx
}

func TestLostAndStaleBlocksAreFound(t *testing.T) {
	const blocks = 700
	m, s, ctx := run(t, blocks)
	s.Grow(Region{(blocks + 100) * ledger.BlockSize, 300})
	if err := Until(ctx, []*Stream{s}, func() bool { return s.Ledger.Written() == blocks+300 }); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	read := 0
	verify := func() []Finding {
		read = 0
		lost, err := s.Verify(ctx, m, func(n int) { read += n })
		if err != nil {
			t.Fatal(err)
		}
		return lost
	}
	if lost := verify(); len(lost) != 0 || read != blocks+300 {
		t.Fatalf("%d blocks read, lost %v", read, lost)
	}
	ledger.Fill(m.data[5*ledger.BlockSize:6*ledger.BlockSize], 9, 5, 0) // an old write came back
	clear(m.data[699*ledger.BlockSize : 700*ledger.BlockSize])          // a write vanished
	m.data[801*ledger.BlockSize+77] ^= 4                                // a bit flipped, in the second region
	var got []int
	for _, f := range verify() {
		got = append(got, f.Block)
	}
	if want := []int{5, 699, 701}; !slices.Equal(got, want) {
		t.Fatalf("lost blocks %v, want %v", got, want)
	}
}

func TestWindowTakesWhatOverlaps(t *testing.T) {
	m, s, ctx := run(t, 64)
	quiet := s.meter.Begin()
	if _, _, err := quiet.End(ctx); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.gate = make(chan struct{})
	m.mu.Unlock()
	// All eight are held now; the window begins after their submission and ends before their
	// completion.
	if err := poll(ctx, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.held == 8 }); err != nil {
		t.Fatal(err)
	}
	s.meter.Recent() // forget what ended before
	w := s.meter.Begin()
	go func() {
		_ = poll(ctx, func() bool { return s.meter.Recent() > 60*time.Millisecond })
		m.mu.Lock()
		close(m.gate)
		m.gate = nil
		m.mu.Unlock()
	}()
	longest, ops, err := w.End(ctx)
	if err != nil || ops < 8 || longest < 60*time.Millisecond {
		t.Fatalf("window saw %d operations, the longest %v: %v", ops, longest, err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestErrorEndsWriters(t *testing.T) {
	m, s, ctx := run(t, 64)
	broken := errors.New("broken")
	m.mu.Lock()
	m.err = broken
	m.mu.Unlock()
	err := Until(ctx, []*Stream{s}, func() bool { return false })
	if !errors.Is(err, ErrEnded) || !errors.Is(err, broken) {
		t.Fatalf("until: %v", err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(s.meter.Errors()); n != 8 {
		t.Fatalf("%d errors, want one for each writer", n)
	}
	if lost, err := s.Verify(ctx, m, func(int) {}); err != nil || len(lost) != 0 {
		t.Fatalf("a failed write must not count as lost: %v %v", lost, err)
	}
}

func TestPhasesAreMeasuredApart(t *testing.T) {
	_, s, ctx := run(t, 64)
	s.meter.Phase("next")
	if err := poll(ctx, func() bool { return s.meter.InPhase() >= 100 }); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	p := s.meter.Phases()
	if p["next"] < 100 || p["fill"]+p["next"] != s.meter.Acked() || s.meter.Acked() != s.Ledger.Acked() {
		t.Fatalf("phases %v, acked %d and %d", p, s.meter.Acked(), s.Ledger.Acked())
	}
}

func TestStopIsBounded(t *testing.T) {
	m, s, ctx := run(t, 64)
	m.mu.Lock()
	m.gate = make(chan struct{})
	gate := m.gate
	m.mu.Unlock()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := s.Stop(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("stop of held writes: %v", err)
	}
	close(gate)
	m.mu.Lock()
	m.gate = nil
	m.mu.Unlock()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestPaceIsKept(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m := &memory{data: make([]byte, 64*ledger.BlockSize)}
	s := NewStream("vol", m, NewMeter(""), 9, 2, 1, Region{0, 64})
	s.Every = 10 * time.Millisecond
	begun := time.Now()
	s.Start()
	if err := Until(ctx, []*Stream{s}, func() bool { return s.meter.Acked() >= 20 }); err != nil {
		t.Fatal(err)
	}
	// Each of the two writers has begun ten writes at most per tenth of a second, and one more.
	if n, took := s.meter.Acked(), time.Since(begun); n > 2*int64(took/s.Every+1) {
		t.Errorf("%d writes in %v", n, took)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestLayoutIsReadFromTheDevice(t *testing.T) {
	dev := &memory{data: make([]byte, 64<<10)}
	for i := range dev.data {
		dev.data[i] = byte(i >> 12)
	}
	l := Layout{{0, 8192, 4096}, {4096, 32768, 8192}, {20480, 0, 4096}}
	p := make([]byte, 24576)
	if _, err := l.On(dev).ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	for i, want := range []byte{2, 8, 9, 0, 0, 0} {
		if p[i*4096] != want || p[i*4096+4095] != want {
			t.Errorf("block %d reads %d, want %d", i, p[i*4096], want)
		}
	}
}

func TestLayoutOfAFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 1<<20), 1<<20); err != nil {
		t.Fatal(err)
	}
	l, err := LayoutOf(f)
	if err != nil {
		t.Skipf("this filesystem does not tell: %v", err)
	}
	var sum int64
	for _, x := range l {
		if x.Logical < 1<<20 {
			t.Errorf("a hole is mapped: %+v", x)
		}
		sum += x.Length
	}
	if sum != 1<<20 {
		t.Errorf("%d bytes mapped: %v", sum, l)
	}
}
