package iscsi

import (
	"sync"
	"sync/atomic"

	"github.com/gemel-storage/gemel/internal/memlimit"
)

// The memory of commands: one budget for all sessions of a server. Only commands wait for it, in
// lines, while the readers of their connections continue to read: what frees memory is data that a
// reader brings and answers that a writer sends.
//
// Three quarters are for what the target asks for: the whole data of a write, before its R2T is
// sent or it is executed, and the buffer of a read. A quarter is for data that initiators send
// unasked (immediate data, FirstBurstLength) while their command waits in the queue of the other
// part: kept apart, so that commands which wait cannot take what those need that they wait for.
// Data that comes unasked cannot wait; where there is no room for it the command is answered TASK
// SET FULL.
//
// A session that holds nothing is given a small amount beyond the budget, so that each gets on with
// a command at a time whatever the others do. Larger ones take turns, session by session.
const (
	defaultMemory = 1 << 30  // without a limit of the process
	leastMemory   = 64 << 20 // however little the process may use
	memoryShare   = 4        // of what Go may use: beside it there are the partner's writes, buffers in pools and the collector's room
)

// defaultBudget is a quarter of Go's memory limit as it is now (GOMEMLIMIT, or 90 % of the
// container's: see internal/memlimit).
func defaultBudget() int64 {
	return memlimit.Share(memoryShare, leastMemory, defaultMemory)
}

type budget struct {
	limit   atomic.Int64
	asked   atomic.Int64 // bytes in use of the larger part
	unasked atomic.Int64 // of the smaller
	other   atomic.Int64 // bounded otherwise: answers that are queued, a command's working memory
	waiters atomic.Int32 // sessions in line
	kick    chan struct{}

	mu   sync.Mutex
	line []*conn
}

func (b *budget) forUnasked() int64 { return b.limit.Load() / 4 }
func (b *budget) forAsked() int64   { return b.limit.Load() - b.forUnasked() }

func (b *budget) used() int64 { return b.asked.Load() + b.unasked.Load() + b.other.Load() }

// takeAsked takes n bytes; with turn also while sessions are in line.
func (b *budget) takeAsked(n int, turn bool) bool {
	return (turn || b.waiters.Load() == 0) && take(&b.asked, n, b.forAsked())
}

func (b *budget) takeUnasked(n int) bool { return take(&b.unasked, n, b.forUnasked()) }

func take(used *atomic.Int64, n int, limit int64) bool {
	for {
		u := used.Load()
		if u+int64(n) > limit {
			return false
		}
		if used.CompareAndSwap(u, u+int64(n)) {
			return true
		}
	}
}

func (b *budget) give(asked, unasked int) {
	b.asked.Add(-int64(asked))
	b.unasked.Add(-int64(unasked))
	if b.waiters.Load() > 0 {
		b.wake()
	}
}

func (b *budget) wake() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// enqueue puts a session in line, unless it is there. Its mutex is held.
func (b *budget) enqueue(c *conn) {
	b.mu.Lock()
	if !c.inLine {
		c.inLine = true
		b.line = append(b.line, c)
		b.waiters.Add(1)
	}
	b.mu.Unlock()
	b.wake()
}

// first takes the first session out of the line, still counted as a waiter.
func (b *budget) first() *conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.line) == 0 {
		return nil
	}
	c := b.line[0]
	b.line = append(b.line[:0], b.line[1:]...)
	c.inLine = false
	return c
}

// back puts sessions that first gave to the front of the line, for it is their turn still. They
// count as waiters.
func (b *budget) back(cs []*conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kept []*conn
	for _, c := range cs {
		if c.inLine {
			b.waiters.Add(-1) // it has come again since
			continue
		}
		c.inLine = true
		kept = append(kept, c)
	}
	b.line = append(kept, b.line...)
}

// grants gives memory to the sessions in line, one command each turn, until the server ends. When
// it has run out, the rest of the line is gone through for those that get a small command beyond
// the budget.
func (s *Server) grants() {
	defer s.wg.Done()
	b := &s.memory
	var kept []*conn
	for {
		select {
		case <-b.kick:
		case <-s.stopTick:
			return
		}
		for c := b.first(); c != nil; c = b.first() {
			c.mu.Lock()
			served, more := c.grantNext(len(kept) > 0)
			switch {
			case more && !served:
				kept = append(kept, c)
			case more:
				b.enqueue(c)
				fallthrough
			default:
				b.waiters.Add(-1)
			}
			c.unlockAndSend()
		}
		b.back(kept)
		clear(kept)
		kept = kept[:0]
	}
}

// Memory is how much of commands the server holds for all sessions together and how much it may, in
// bytes.
func (s *Server) Memory() (used, limit int64) { return s.memory.used(), s.memory.limit.Load() }

// setMemory follows the limit of the process, which may change while it runs.
func (s *Server) setMemory() {
	limit := int64(s.cfg.Limits.Memory)
	if limit == 0 {
		limit = max(defaultBudget(), 4*int64(classSize(s.cfg.Limits.Transfer)))
	}
	if old := s.memory.limit.Swap(limit); old < limit {
		s.memory.wake()
	}
}
