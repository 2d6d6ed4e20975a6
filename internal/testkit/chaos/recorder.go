package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// slowOp is the least that is kept as a pause.
const slowOp = 20 * time.Millisecond

// recorder keeps what clients did and saw since the last cut. Times are nanoseconds since it was
// made, of the monotonic clock.
type recorder struct {
	begun time.Time
	last  atomic.Uint64 // value that was given out last
	done  atomic.Int64  // operations that have ended
	// gate is held for reading during an operation and for writing during a cut.
	gate sync.RWMutex
	// noSpace is set while writes may be refused for lack of space.
	noSpace           atomic.Bool
	refused           atomic.Int64 // writes that were
	fences, recreated atomic.Int64 // commands of hosts that fence each other; LUNs that came twice
	flood             atomic.Int64 // bytes written by floods
	guests, crowded   atomic.Int64 // sessions of crowds; their commands that were done
	commandMemory     atomic.Int64 // bytes that a node held for commands beside a crowd, at most
	resident          atomic.Int64 // bytes of a node's process meanwhile, at most
	replaced          atomic.Int64 // disks
	memberDrains      atomic.Int64 // that a node has begun
	damaged           atomic.Int64 // files
	shutDowns         atomic.Int64 // filesystems that shut themselves down
	// abandoned ends what repeats itself until it is answered: the run has failed.
	abandoned atomic.Bool

	mu        sync.Mutex
	ops       map[key][]porcupine.Operation
	first     map[key]uint64
	pauses    []pause
	errs      []error
	anomalies []anomaly
	wounds    wounds
	wrong     []string // reads that brought what was never written there; the first ones
	wrongs    int      // how many there were
	workers   []*progress
}

// pause is an operation that took long.
type pause struct {
	start, end int64
	what       string
}

func (p pause) length() time.Duration { return time.Duration(p.end - p.start) }

// progress of one worker: when the last operation that has ended was begun.
type progress struct{ begun atomic.Int64 }

func newRecorder() *recorder {
	return &recorder{begun: time.Now(), ops: map[key][]porcupine.Operation{}, first: map[key]uint64{}}
}

func (r *recorder) now() int64 { return int64(time.Since(r.begun)) }

// value is one that no write has used, and says which block it is for.
func (r *recorder) value(k key) uint64 { return r.last.Add(1)<<tagBits | k.tag() }

// most raises a greatest value.
func (*recorder) most(of *atomic.Int64, v int64) {
	for old := of.Load(); v > old && !of.CompareAndSwap(old, v); old = of.Load() {
	}
}

func (r *recorder) worker() *progress {
	p := &progress{}
	r.mu.Lock()
	r.workers = append(r.workers, p)
	r.mu.Unlock()
	return p
}

// ended counts an operation of a worker.
func (r *recorder) ended(p *progress, start, end int64, what string) {
	r.done.Add(1)
	p.begun.Store(start)
	if time.Duration(end-start) < slowOp {
		return
	}
	r.mu.Lock()
	r.pauses = append(r.pauses, pause{start, end, what})
	r.mu.Unlock()
}

// add puts operations on a block into its history.
func (r *recorder) add(k key, ops ...porcupine.Operation) {
	r.mu.Lock()
	r.ops[k] = append(r.ops[k], ops...)
	r.mu.Unlock()
}

// open is the end of an operation whose effect may come at any time until the next cut.
const open = math.MaxInt64

// maxErrors are kept; more of the same tell nothing.
const maxErrors = 100

func (r *recorder) failed(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) < maxErrors {
		r.errs = append(r.errs, fmt.Errorf("at %.3f s: "+format, append([]any{time.Since(r.begun).Seconds()}, args...)...))
	}
}

// wrongRead is of a block that held what was never written there: parts of several things, or
// another block's.
func (r *recorder) wrongRead(what any, v uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wrongs++; r.wrongs <= maxErrors {
		text := fmt.Sprintf("at %.3f s: %v holds %#x, which was never written there", time.Since(r.begun).Seconds(), what, v)
		if err != nil {
			text += ": " + err.Error()
		}
		r.wrong = append(r.wrong, text)
	}
}

// all waits until every worker has ended an operation that it began now or later: service is back,
// for everyone.
func (r *recorder) all(ctx context.Context) error {
	since := r.now()
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		behind := 0
		r.mu.Lock()
		for _, p := range r.workers {
			if p.begun.Load() < since {
				behind++
			}
		}
		r.mu.Unlock()
		if behind == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d workers still wait for an answer: %w", behind, len(r.workers), context.Cause(ctx))
		}
	}
}

// overlapping takes the pauses that have ended out of the list and returns those that overlap a
// time; the rest was met outside of it.
func (r *recorder) overlapping(from, to int64) (in, out []pause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pauses {
		if p.end >= from && p.start <= to {
			in = append(in, p)
		} else {
			out = append(out, p)
		}
	}
	r.pauses = nil
	return in, out
}

var errNoValue = errors.New("a block cannot be read")

// cut stops the clients between two operations, reads every block, judges the histories and begins
// new ones from what was read. It keeps memory and search bounded and loses nothing: nothing is
// under way at a cut.
func (r *recorder) cut(keys []key, read func(k key) (uint64, error)) (ops int, err error) {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.mu.Lock()
	all := r.ops
	r.ops = map[key][]porcupine.Operation{}
	r.mu.Unlock()
	end := r.now()
	for _, k := range keys {
		list := all[k]
		for i := range list {
			list[i].Return = min(list[i].Return, end)
		}
		call := r.now()
		v, err := read(k)
		if errors.Is(err, register.ErrTorn) || err == nil && !k.owns(v) {
			r.wrongRead(k, v, err)
		}
		if err != nil && r.hurt(k, err, call) { // the run was interrupted before it was restored
			ops += len(list)
			if a := check(k, r.first[k], list); a != nil {
				r.mu.Lock()
				r.anomalies = append(r.anomalies, *a)
				r.mu.Unlock()
			}
			continue
		}
		if err != nil {
			return ops, fmt.Errorf("%w: %v: %w", errNoValue, k, err)
		}
		list = append(list, porcupine.Operation{ClientId: readerID, Input: register.Input{Kind: register.Read}, Output: v, Call: call, Return: r.now()})
		ops += len(list)
		if a := check(k, r.first[k], list); a != nil {
			r.mu.Lock()
			r.anomalies = append(r.anomalies, *a)
			r.mu.Unlock()
		}
		r.first[k] = v
	}
	return ops, nil
}

// readerID is the client of the reads of a cut.
const readerID = 9999

// found returns what is wrong so far.
func (r *recorder) found() (list []anomaly, wrongs int, errs []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.anomalies), r.wrongs, slices.Clone(r.errs)
}
