package store

import "sync"

// syncGroup lets callers share flushes. A flush that is already under way does not count for a
// caller: it may have passed the caller's data by.
type syncGroup struct {
	mu      sync.Mutex
	cond    *sync.Cond
	begun   uint64 // flushes begun
	ended   uint64 // flushes ended; they run one at a time
	running bool
	err     error // the first failure, final
}

// busy reports that a flush is under way.
func (g *syncGroup) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

func (g *syncGroup) do(flush func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cond == nil {
		g.cond = sync.NewCond(&g.mu)
	}
	want := g.begun + 1
	for g.ended < want && g.err == nil {
		if g.running {
			g.cond.Wait()
			continue
		}
		g.running = true
		g.begun++
		g.mu.Unlock()
		err := flush()
		g.mu.Lock()
		g.running = false
		g.ended = g.begun
		if err != nil {
			g.err = err
		}
		g.cond.Broadcast()
	}
	return g.err
}
