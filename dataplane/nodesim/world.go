// Package nodesim plays whole nodes, with everything that runs in them, and hosts that are real
// initiators, under fake time: a bubble of testing/synctest holds two nodes, their disks, network
// and arbiter, and several hosts. A seed decides what hosts ask for, what an administrator asks
// for, and what fails. It does not decide in which order goroutines run that are ready at one
// instant. See docs/testing.md and docs/decisions/0044-node-layer-under-fake-time.md.
package nodesim

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// world is one history.
type world struct {
	seed   uint64
	epoch  time.Time
	dir    string
	net    *network
	record *record
	nodes  [2]*machine
	tracer io.Writer

	cpus float64 // of each machine

	shape    string
	members  bool // of the nodes' backing volumes
	unserved bool // under mu
	caller   *caller
	luns     []*lun
	shared   *lun // of the hosts that fence each other
	users    []*user
	fencers  []*fencer
	mixers   []*fencer      // that use slow and fast LUNs over one session
	busy     sync.WaitGroup // hosts at work

	histories []*history
	fences    fences
	lunBlock  int64 // logical block size of LUNs

	wg       sync.WaitGroup
	roomless atomic.Bool   // files may find no room, and what is asked for be refused
	idle     chan struct{} // closed when hosts have to stop
	over     chan struct{} // closed when no caller waits for answers any more
	stopping chan struct{} // closed when the nodes stop
	turn     chan struct{} // who holds it may wait for everything to come to rest

	mu         sync.Mutex
	kept       []*lun         // of a crowd, which are there until this changes
	quiet      time.Time      // when the last fault ended; zero: not yet
	counts     map[string]int // faults by kind
	branches   map[string]int
	violations []string
	ops        map[*pending]bool
	longest    map[string]time.Duration
	operations int
}

// pending is something that has to end.
type pending struct {
	what  string
	since time.Time
	bound time.Duration // after the last fault
}

func newWorld(seed uint64, dir string, tracer io.Writer) *world {
	w := &world{seed: seed, epoch: time.Now(), dir: dir, net: newNetwork(), tracer: tracer, cpus: 2,
		idle: make(chan struct{}), over: make(chan struct{}), stopping: make(chan struct{}), turn: make(chan struct{}, 1),
		counts: map[string]int{}, branches: map[string]int{}, ops: map[*pending]bool{}, longest: map[string]time.Duration{}}
	w.fences.lock = make(chan struct{}, 1)
	w.record = &record{rng: w.rand(3), delay: 2 * time.Millisecond}
	log := slog.New(w.logHandler())
	for i := range w.nodes {
		w.nodes[i] = &machine{w: w, i: i, addr: nodeAddr[i], rate: 0.1, disk: newDisk(seed + uint64(i)), log: log.With("node", name(i)),
			dir: filepath.Join(dir, name(i)+"-1")}
	}
	return w
}

// logHandler writes what nodes log into the trace, with times of the history.
func (w *world) logHandler() slog.Handler {
	if w.tracer == nil {
		return slog.DiscardHandler
	}
	return slog.NewTextHandler(w.tracer, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			a.Value = slog.StringValue(fmt.Sprintf("%.3fms", float64(time.Since(w.epoch))/1e6))
		}
		return a
	}})
}

// rand is a source of chance for one actor: what one does, does not change what another draws.
func (w *world) rand(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, actor)) }

func (w *world) now() time.Duration { return time.Since(w.epoch) }

func (w *world) trace(format string, args ...any) {
	if w.tracer != nil {
		fmt.Fprintf(w.tracer, "%12.3fms  %s\n", float64(w.now())/1e6, fmt.Sprintf(format, args...))
	}
}

// fail is a violation of what is promised.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf("at %.3fms: ", float64(w.now())/1e6) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	if len(w.violations) < 20 {
		w.violations = append(w.violations, text)
	}
	w.mu.Unlock()
	w.trace("VIOLATION %s", text)
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// rare notes a branch that was taken.
func (w *world) rare(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.branches[what]++
}

// met tells whether a branch was taken.
func (w *world) met(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.branches[what] > 0
}

func (w *world) stopped() bool { return closed(w.stopping) }

// setQuiet tells that the last fault is over.
func (w *world) setQuiet() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quiet = time.Now()
}

func (w *world) isQuiet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.quiet.IsZero()
}

// still runs f at a moment at which every other goroutine of the history waits for something.
func (w *world) still(f func()) {
	w.turn <- struct{}{}
	synctest.Wait()
	f()
	<-w.turn
}

// begin notes that something has to end: within bound once nothing fails any more.
func (w *world) begin(bound time.Duration, format string, args ...any) *pending {
	p := &pending{what: fmt.Sprintf(format, args...), since: time.Now(), bound: bound}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ops[p] = true
	return p
}

func (w *world) ended(p *pending, kind string) {
	took := time.Since(p.since)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ops, p)
	w.operations++
	w.longest[kind] = max(w.longest[kind], took)
}

// overdue lists what should have ended.
func (w *world) overdue() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.ops {
		from := p.since
		if w.quiet.After(from) {
			from = w.quiet
		}
		if took := time.Since(from); !w.quiet.IsZero() && took > p.bound {
			list = append(list, fmt.Sprintf("%s is not answered %v after it began and %v after the last fault", p.what, time.Since(p.since), time.Since(w.quiet)))
		}
	}
	return list
}

// inSync tells that both nodes are members and serve.
func (w *world) inSync() (ok bool, saw string) {
	ok = true
	for _, m := range w.nodes {
		v, up := m.view()
		if !up {
			ok = false
			saw += fmt.Sprintf("%s: no process; ", name(m.i))
			continue
		}
		if v.Phase != pair.Paired || !v.Serving {
			ok = false
		}
		saw += fmt.Sprintf("%s: %v %s (serving %v, linked %v, log %d); ", name(m.i), v.Phase, v.Reason, v.Serving, v.Linked, v.LogIndex)
	}
	return ok, saw
}

// await polls a condition in fake time.
func (w *world) await(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// startNodes begins both, and the supervisors that keep them.
func (w *world) startNodes() error {
	for _, m := range w.nodes {
		if err := os.MkdirAll(m.dir, 0o700); err != nil {
			return err
		}
		if err := m.start(); err != nil {
			return err
		}
		w.wg.Go(m.keep)
	}
	var saw string
	if !w.await(20*time.Second, func() (ok bool) { ok, saw = w.inSync(); return ok }) {
		return errors.New("the nodes do not find each other: " + saw)
	}
	return nil
}

// stopNodes stops both in an orderly way and waits for all their lives.
func (w *world) stopNodes() {
	close(w.stopping)
	begun := time.Now()
	var wg sync.WaitGroup
	for _, m := range w.nodes {
		l := m.live()
		if l == nil {
			continue // it has never started
		}
		l.stop()
		wg.Go(func() {
			select {
			case <-l.done:
				if l.err != nil && !l.isDead() {
					w.fail("node %s: an orderly stop ends with %v", name(m.i), l.err)
				}
			case <-time.After(stopBound):
				w.fail("node %s: an orderly stop has not ended after %v", name(m.i), time.Since(begun))
			}
		})
	}
	wg.Wait()
}

// pause is a while between two actions of a host or a caller.
func (w *world) pause(rng *rand.Rand, least, most time.Duration) {
	t := time.NewTimer(least + time.Duration(rng.Int64N(int64(most-least)+1)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.idle:
	}
}

// isIdle tells that hosts have to stop.
func (w *world) isIdle() bool { return closed(w.idle) }

// gaveUp tells that what is not answered yet never will be.
func (w *world) gaveUp() bool { return closed(w.over) }

// closed tells that a channel on which nothing is sent has been closed.
func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
