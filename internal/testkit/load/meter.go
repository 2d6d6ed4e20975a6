// Package load writes to volumes as an application would, and measures what the application feels.
package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Meter counts acknowledged writes by phase and times operations. Times are since its making.
type Meter struct {
	begun time.Time
	acked atomic.Int64

	mu      sync.Mutex
	phase   string
	phases  map[string]int64
	order   []string // of the phases
	windows []*Window
	slots   []*slot
	errs    []error
	recent  time.Duration // the slowest since Recent was called
}

// slot is one place of the queue: the operation in flight there, if any.
type slot struct {
	start time.Duration
	busy  bool
}

// NewMeter is a meter whose first phase has that name.
func NewMeter(phase string) *Meter {
	return &Meter{begun: time.Now(), phase: phase, phases: map[string]int64{phase: 0}, order: []string{phase}}
}

// Phase starts a phase; acknowledgements count for the phase in which they arrive.
func (m *Meter) Phase(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = name
	if _, ok := m.phases[name]; !ok {
		m.phases[name] = 0
		m.order = append(m.order, name)
	}
}

// Acked is the number of acknowledged writes.
func (m *Meter) Acked() int64 { return m.acked.Load() }

// InPhase is the number of acknowledged writes of the present phase.
func (m *Meter) InPhase() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.phases[m.phase]
}

// Phases are the acknowledged writes of every phase so far.
func (m *Meter) Phases() map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]int64, len(m.phases))
	for k, v := range m.phases {
		out[k] = v
	}
	return out
}

// Order is the names of the phases in the order of their beginning.
func (m *Meter) Order() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.order...)
}

// Errors are what operations failed with.
func (m *Meter) Errors() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]error(nil), m.errs...)
}

// Recent is the slowest operation that ended since the last call, or is still under way.
func (m *Meter) Recent() time.Duration {
	now := time.Since(m.begun)
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.recent
	m.recent = 0
	for _, s := range m.slots {
		if s.busy {
			d = max(d, now-s.start)
		}
	}
	return d
}

func (m *Meter) slot() *slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &slot{}
	m.slots = append(m.slots, s)
	return s
}

func (m *Meter) submit(s *slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.start, s.busy = time.Since(m.begun), true
}

func (m *Meter) complete(s *slot, err error) {
	end := time.Since(m.begun)
	m.mu.Lock()
	defer m.mu.Unlock()
	took := end - s.start
	s.busy = false
	m.recent = max(m.recent, took)
	for _, w := range m.windows {
		if s.start <= w.to && end >= w.from {
			w.ops++
			w.longest = max(w.longest, took)
		}
	}
	if err != nil {
		m.errs = append(m.errs, err)
		return
	}
	m.acked.Add(1)
	m.phases[m.phase]++
}

// Window measures one event: the longest time from submission to completion of any operation that
// overlaps it.
type Window struct {
	m        *Meter
	from, to time.Duration
	longest  time.Duration
	ops      int64
}

const forever = time.Duration(1<<63 - 1)

// Begin opens a window, just before the event is triggered.
func (m *Meter) Begin() *Window {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &Window{m: m, from: time.Since(m.begun), to: forever}
	m.windows = append(m.windows, w)
	return w
}

// End closes the window, the event being settled, waits for the operations under way at this
// instant, and returns the longest of all that overlap and their number.
func (w *Window) End(ctx context.Context) (time.Duration, int64, error) {
	w.m.mu.Lock()
	w.to = time.Since(w.m.begun)
	w.m.mu.Unlock()
	err := poll(ctx, func() bool {
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		for _, s := range w.m.slots {
			if s.busy && s.start <= w.to {
				return false
			}
		}
		return true
	})
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for i, x := range w.m.windows {
		if x == w {
			w.m.windows = append(w.m.windows[:i], w.m.windows[i+1:]...)
			break
		}
	}
	return w.longest, w.ops, err
}

// poll returns when ok does, or with the context's error.
func poll(ctx context.Context, ok func() bool) error {
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for !ok() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
