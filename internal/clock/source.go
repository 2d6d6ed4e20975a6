package clock

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A command looks at the clock two or three times at each node, and a system call for each of them
// is a tenth of what a read from the page cache costs there. The runtime reads CLOCK_MONOTONIC and
// CLOCK_REALTIME without one. CLOCK_BOOTTIME is CLOCK_MONOTONIC and the time for which the machine
// was suspended, which the kernel adds to CLOCK_BOOTTIME and CLOCK_REALTIME in one step. So while
// CLOCK_REALTIME and CLOCK_MONOTONIC have gone on by the same, CLOCK_BOOTTIME has, too. When they
// have not, the machine was suspended or a program has set the wall clock, and the kernel is asked
// which of them it was.

// apart is by how much readings of two clocks may differ without an event between them, in ns: what
// interrupts and other threads put between the readings. A suspension that is shorter is not
// counted, nor are several that are shorter together.
const apart = 100_000

// lookTries bounds how often a source looks for a moment in which it is not interrupted.
const lookTries = 50

// reading is one look at the clocks that need no system call, in ns.
type reading struct {
	wall int64 // CLOCK_REALTIME
	mono int64 // CLOCK_MONOTONIC, from some point on; read after wall
}

// agrees reports that the machine was not suspended, and the wall clock not set, between two looks.
func (r reading) agrees(other reading) bool {
	by := (r.wall - other.wall) - (r.mono - other.mono)
	return -apart <= by && by <= apart
}

var start = time.Now()

func read() reading {
	t := time.Now()
	return reading{wall: t.UnixNano(), mono: int64(t.Sub(start))}
}

// source makes CLOCK_BOOTTIME from other clocks.
type source struct {
	read func() reading
	boot func() int64 // CLOCK_BOOTTIME in ns, by a system call

	mu  sync.Mutex // of those who replace ref
	ref atomic.Pointer[reference]
}

// reference is one moment by all three clocks.
type reference struct {
	reading
	boot int64
}

func newSource(read func() reading, boot func() int64) *source {
	s := &source{read: read, boot: boot}
	s.ref.Store(s.look())
	return s
}

func (s *source) now() int64 {
	t, ref := s.read(), s.ref.Load()
	if t.agrees(ref.reading) {
		return ref.bootAt(t)
	}
	return s.renew()
}

func (r *reference) bootAt(t reading) int64 { return r.boot + (t.mono - r.mono) }

// renew replaces the reference. If only the wall clock was set, CLOCK_BOOTTIME goes on from what it
// was taken for: a more exact reading could be before what another thread has been given.
func (s *source) renew() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.look()
	was := s.ref.Load().bootAt(r.reading)
	if by := r.boot - was; -apart <= by && by <= apart {
		r.boot = was
	}
	s.ref.Store(r)
	return r.boot
}

// look reads all clocks at one moment: it tries again when it was interrupted. CLOCK_BOOTTIME is
// read first, so that what follows from the reference is never ahead of it.
func (s *source) look() *reference {
	var best *reference
	least := int64(math.MaxInt64)
	for range lookTries {
		before := s.read()
		boot := s.boot()
		r := s.read()
		took := r.mono - before.mono
		if !r.agrees(before) {
			took += math.MaxInt64 / 2 // suspended meanwhile
		}
		if best == nil || took < least {
			best, least = &reference{r, boot}, took
		}
		if least < apart/2 {
			break
		}
	}
	return best
}
