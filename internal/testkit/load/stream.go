package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gemel-storage/gemel/internal/testkit/ledger"
)

// Target is what a stream writes to. Offsets and lengths are multiples of ledger.BlockSize, buffers
// are aligned to it. Methods are called concurrently. A write that returns nil has been
// acknowledged.
type Target interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Sync() error // what was acknowledged is durable
	Close() error
}

// Stream keeps Depth writes in flight on one target: first every block once, in order, then blocks
// at random.
type Stream struct {
	Name   string
	Target Target
	Ledger *ledger.Ledger
	// Every is the least time from the beginning of a writer's write to that of its next one; 0:
	// none.
	Every time.Duration
	meter *Meter
	seed  uint64

	mu      sync.Mutex
	regions []Region

	stop  atomic.Bool
	alive atomic.Int32
	wg    sync.WaitGroup
}

// Region is a run of blocks on the target.
type Region struct {
	Off    int64 // bytes
	Blocks int
}

// NewStream lays a stream out; volume is what its blocks are marked with.
func NewStream(name string, t Target, m *Meter, volume uint64, depth int, seed uint64, r Region) *Stream {
	return &Stream{Name: name, Target: t, Ledger: ledger.New(volume, depth, r.Blocks), meter: m, seed: seed, regions: []Region{r}}
}

// Grow adds blocks, which are written next.
func (s *Stream) Grow(r Region) {
	s.mu.Lock()
	s.regions = append(s.regions, r)
	s.mu.Unlock()
	s.Ledger.Grow(r.Blocks)
}

// Regions are where its blocks are, in order.
func (s *Stream) Regions() []Region {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Region(nil), s.regions...)
}

func (s *Stream) offset(block int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.regions {
		if block < r.Blocks {
			return r.Off + int64(block)*ledger.BlockSize
		}
		block -= r.Blocks
	}
	panic("load: block beyond the regions")
}

// Start starts the writers.
func (s *Stream) Start() {
	s.alive.Store(int32(s.Ledger.Workers))
	for w := range s.Ledger.Workers {
		slot := s.meter.slot()
		s.wg.Go(func() {
			defer s.alive.Add(-1)
			s.write(w, slot)
		})
	}
}

// write is one writer. It ends at the first error: what comes after would say nothing new.
func (s *Stream) write(w int, slot *slot) {
	r := rand.New(rand.NewPCG(s.seed, uint64(w)))
	step := s.Ledger.Workers
	buf := Aligned(ledger.BlockSize)
	for seq, next := uint64(1), w; !s.stop.Load(); seq++ {
		begun := time.Now()
		n := s.Ledger.Len()
		b := next
		if next < n {
			next += step
		} else {
			b = r.IntN((n-w+step-1)/step)*step + w
		}
		ledger.Fill(buf, s.Ledger.Volume, uint64(b), seq)
		off := s.offset(b)
		s.Ledger.Submit(b, seq)
		s.meter.submit(slot)
		got, err := s.Target.WriteAt(buf, off)
		switch {
		case err == nil && got != len(buf):
			err = fmt.Errorf("%s: write at %d: %d bytes of %d", s.Name, off, got, len(buf))
		case err != nil:
			err = fmt.Errorf("%s: write at %d: %w", s.Name, off, err)
		default:
			s.Ledger.Ack(b, seq)
		}
		s.meter.complete(slot, err)
		if err != nil {
			return
		}
		if s.Every > 0 {
			time.Sleep(time.Until(begun.Add(s.Every)))
		}
	}
}

// Stop lets writes under way end and waits for the writers, unless ctx ends first.
func (s *Stream) Stop(ctx context.Context) error {
	s.stop.Store(true)
	if err := poll(ctx, func() bool { return s.alive.Load() == 0 }); err != nil {
		return fmt.Errorf("%s: %d writes do not come back: %w", s.Name, s.alive.Load(), err)
	}
	s.wg.Wait()
	return nil
}

// ErrEnded is returned by waits when writers have ended on errors.
var ErrEnded = errors.New("a writer has ended")

// Alive is nil while all writers of a stream write.
func (s *Stream) Alive() error {
	if s.alive.Load() == int32(s.Ledger.Workers) {
		return nil
	}
	return errors.Join(append([]error{fmt.Errorf("%s: %w", s.Name, ErrEnded)}, s.meter.Errors()...)...)
}

// Until waits for a condition while the streams write.
func Until(ctx context.Context, streams []*Stream, ok func() bool) error {
	var err error
	return errors.Join(poll(ctx, func() bool {
		for _, s := range streams {
			if err = s.Alive(); err != nil {
				return true
			}
		}
		return ok()
	}), err)
}

// Aligned is a buffer that direct I/O takes.
func Aligned(n int) []byte {
	b := make([]byte, n+ledger.BlockSize)
	shift := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (ledger.BlockSize - 1)
	return b[shift : shift+n : shift+n]
}
