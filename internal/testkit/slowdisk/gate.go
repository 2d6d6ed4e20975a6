package slowdisk

import (
	"math"
	"sync"
	"syscall"
	"time"
)

type kind int

const (
	read kind = iota
	write
)

// gate decides when a request is served. It knows nothing of FUSE.
type gate struct {
	mu      sync.Mutex
	knobs   Knobs
	changed chan struct{} // closed and replaced when knobs change
	pipes   [2]pipe

	active  int             // served now
	waiting []chan struct{} // for MaxParallel, in their order; closed when it is their turn

	arrived uint64              // number of the last write
	open    map[uint64]struct{} // writes that have not ended
	ended   *sync.Cond          // a write has
	flushes int                 // waiting for them

	stats Stats
}

func newGate() *gate {
	g := &gate{changed: make(chan struct{}), open: map[uint64]struct{}{}}
	g.ended = sync.NewCond(&g.mu)
	return g
}

func (g *gate) set(k Knobs) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for i := range g.pipes {
		g.pipes[i].advance(now, g.bandwidth(kind(i))) // at the old rate so far
	}
	g.knobs = k
	close(g.changed)
	g.changed = make(chan struct{})
	g.grant()
	g.stats.MaxInFlight, g.stats.MaxServed = g.stats.InFlight, g.active
}

func (g *gate) snapshot() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

func (g *gate) bandwidth(k kind) int64 {
	if k == read {
		return g.knobs.ReadBandwidth
	}
	return g.knobs.WriteBandwidth
}

// serve runs do, which moves n bytes at off, when the operations before it are done and its time
// has passed.
func (g *gate) serve(k kind, off uint64, n int, do func() syscall.Errno) syscall.Errno {
	number := g.enter(k)
	defer g.leave(k, n, number)
	g.until(g.free)
	g.acquire()
	defer g.release()
	g.mu.Lock()
	p := &g.pipes[k]
	p.advance(time.Now(), g.bandwidth(k))
	end := p.add(n)
	g.mu.Unlock()
	g.until(func(now time.Time) time.Duration { return p.wait(end, now, g.bandwidth(k)) })
	start := time.Now()
	g.until(func(now time.Time) time.Duration {
		if k == read {
			return g.knobs.ReadLatency - now.Sub(start)
		}
		return g.knobs.WriteLatency - now.Sub(start)
	})
	g.mu.Lock()
	errno := syscall.Errno(0)
	switch {
	case !g.knobs.failsAt(int64(off), n):
	case k == read && g.knobs.ReadErrors:
		errno = syscall.EIO
	case k == write && g.knobs.WriteErrors:
		errno = g.knobs.errno()
	}
	g.mu.Unlock()
	if errno != 0 {
		return errno
	}
	return do()
}

// flush returns when every write that came before it has ended.
func (g *gate) flush() syscall.Errno {
	g.until(g.free)
	g.mu.Lock()
	last := g.arrived
	g.flushes++
	for g.openUpTo(last) {
		g.ended.Wait()
	}
	g.flushes--
	g.mu.Unlock()
	start := time.Now()
	g.until(func(now time.Time) time.Duration { return g.knobs.FlushLatency - now.Sub(start) })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stats.Flushes++
	if g.knobs.FlushErrors {
		return g.knobs.errno()
	}
	return 0
}

func (g *gate) openUpTo(last uint64) bool {
	for n := range g.open {
		if n <= last {
			return true
		}
	}
	return false
}

// until waits as long as what f says is left, which it calls under the lock and again after each
// change of the knobs.
func (g *gate) until(f func(now time.Time) time.Duration) {
	for {
		g.mu.Lock()
		left, changed := f(time.Now()), g.changed
		g.mu.Unlock()
		if left <= 0 {
			return
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-changed:
			t.Stop()
		}
	}
}

// free is how long the disk is still stuck, as far as it knows.
func (g *gate) free(time.Time) time.Duration {
	if g.knobs.Stuck {
		return time.Hour
	}
	return 0
}

func (g *gate) enter(k kind) (number uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stats.InFlight++
	g.stats.MaxInFlight = max(g.stats.MaxInFlight, g.stats.InFlight)
	if k == write {
		g.arrived++
		g.open[g.arrived] = struct{}{}
	}
	return g.arrived
}

func (g *gate) leave(k kind, n int, number uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stats.InFlight--
	if k == read {
		g.stats.Reads++
		g.stats.ReadBytes += uint64(n)
		return
	}
	g.stats.Writes++
	g.stats.WriteBytes += uint64(n)
	delete(g.open, number)
	g.ended.Broadcast()
}

func (g *gate) acquire() {
	turn := make(chan struct{})
	g.mu.Lock()
	g.waiting = append(g.waiting, turn)
	g.grant()
	g.mu.Unlock()
	<-turn
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active--
	g.grant()
}

// grant is called under the lock.
func (g *gate) grant() {
	for len(g.waiting) > 0 && (g.knobs.MaxParallel == 0 || g.active < g.knobs.MaxParallel) {
		close(g.waiting[0])
		g.waiting = g.waiting[1:]
		g.active++
		g.stats.MaxServed = max(g.stats.MaxServed, g.active)
	}
}

// pipe lets bytes through in their order at a rate. It saves nothing up while it is idle.
type pipe struct {
	queued, passed float64 // bytes since the beginning
	at             time.Time
}

func (p *pipe) advance(now time.Time, rate int64) {
	if rate == 0 {
		p.passed = p.queued
	} else {
		p.passed = min(p.queued, p.passed+now.Sub(p.at).Seconds()*float64(rate))
	}
	p.at = now
}

// add returns the position at which the request has passed.
func (p *pipe) add(n int) float64 {
	p.queued += float64(n)
	return p.queued
}

// wait is how long it takes until a position has passed.
func (p *pipe) wait(end float64, now time.Time, rate int64) time.Duration {
	p.advance(now, rate)
	if p.passed >= end {
		return 0
	}
	return time.Duration(math.Ceil((end - p.passed) / float64(rate) * float64(time.Second)))
}
