package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

// Runner keeps a workload running on devices until it is stopped.
type Runner struct {
	w       Workload
	devices []*loaded
	begun   time.Time
	ios     []request
	left    atomic.Int32
	stop    atomic.Bool
	failed  atomic.Pointer[error]
	ended   chan struct{}

	done, errs atomic.Int64
	hist       atomic.Pointer[Histogram] // what operations that end now are counted in
	event      atomic.Pointer[event]
	series     *Series

	mu   sync.Mutex
	idle []*request // paced load: requests that wait for the next operation to be due
	due  int64      // paced load: operations that were handed out
	pace chan struct{}
}

// loaded is a device and how far a sequential load on it is.
type loaded struct {
	Device
	blocks int64
	next   atomic.Int64
}

// request is one slot of the load's depth.
type request struct {
	initiator.IO
	r       *Runner
	on      *loaded
	rng     *rand.Rand
	buf     []byte
	at      time.Duration // submitted, or due; since Runner.begun
	flushed bool          // the second half of a write that is followed by a flush
	flying  atomic.Int64  // at, while it is in flight; -1 otherwise
}

// event is a time to look at: the longest operation that ended since it began.
type event struct{ longest atomic.Int64 }

// retryAfter is how long a tolerant load waits after an error before that slot continues.
const retryAfter = 100 * time.Millisecond

// Start begins a workload on devices; requests are dealt to them in turn.
func Start(w Workload, devices ...Device) (*Runner, error) {
	if w.Depth < 1 || w.Block < 1 || len(devices) == 0 || w.Reads < 0 || w.Reads > 100 {
		return nil, fmt.Errorf("load: depth %d, block %d, %d devices, %d %% reads: not a workload", w.Depth, w.Block, len(devices), w.Reads)
	}
	r := &Runner{w: w, begun: time.Now(), ended: make(chan struct{}), ios: make([]request, w.Depth), series: newSeries()}
	r.hist.Store(new(Histogram))
	for _, d := range devices {
		size := d.Size()
		if w.Span > 0 {
			size = min(size, w.Span)
		}
		if size < int64(w.Block) {
			return nil, fmt.Errorf("load: a device of %d bytes, and blocks of %d", size, w.Block)
		}
		r.devices = append(r.devices, &loaded{Device: d, blocks: size / int64(w.Block)})
	}
	fill := rand.NewChaCha8([32]byte{1})
	for i := range r.ios {
		x := &r.ios[i]
		x.r, x.on, x.rng = r, r.devices[i%len(r.devices)], rand.New(rand.NewPCG(uint64(i), uint64(r.begun.UnixNano())))
		x.User, x.Done = x, requestDone
		x.buf = make([]byte, w.Block)
		_, _ = fill.Read(x.buf)
		x.flying.Store(-1)
	}
	r.left.Store(int32(len(r.ios)))
	if w.Rate > 0 {
		for i := range r.ios {
			r.idle = append(r.idle, &r.ios[i])
		}
		r.pace = make(chan struct{})
		go r.paced()
		return r, nil
	}
	for i := range r.ios {
		r.ios[i].submit(time.Since(r.begun))
	}
	return r, nil
}

// submit starts the slot's next operation.
func (x *request) submit(at time.Duration) {
	r := x.r
	x.at, x.flushed = at, false
	x.Op, x.FUA, x.Buf = initiator.OpWrite, r.w.FUA, x.buf
	if r.w.Reads == 100 || r.w.Reads > 0 && x.rng.IntN(100) < r.w.Reads {
		x.Op, x.FUA = initiator.OpRead, false
	}
	if r.w.Sequential {
		x.Off = (x.on.next.Add(1) - 1) % x.on.blocks * int64(r.w.Block)
	} else {
		x.Off = x.rng.Int64N(x.on.blocks) * int64(r.w.Block)
	}
	x.flying.Store(int64(at))
	x.send()
}

func (x *request) send() {
	if err := x.on.Submit(&x.IO); err != nil {
		x.Err = err
		requestDone(&x.IO)
	}
}

// requestDone is called by the device when an operation has ended; it must not block.
func requestDone(io *initiator.IO) {
	x := io.User.(*request)
	r := x.r
	if io.Err == nil && r.w.Flush && x.Op == initiator.OpWrite && !x.flushed {
		x.flushed = true
		x.Op, x.Buf = initiator.OpFlush, nil
		x.send()
		return
	}
	now := time.Since(r.begun)
	x.flying.Store(-1)
	if e := r.event.Load(); e != nil {
		e.note(now - x.at)
	}
	r.series.add(now, now-x.at, io.Err)
	if io.Err != nil {
		r.errs.Add(1)
		if !r.w.Tolerant {
			r.fail(io.Err)
		}
	} else {
		r.hist.Load().Add(now - x.at)
		r.done.Add(1)
	}
	switch {
	case r.stop.Load():
		r.end()
	case io.Err != nil:
		time.AfterFunc(retryAfter, func() { x.again() })
	default:
		x.again()
	}
}

// again gives the slot its next operation, now or when one is due.
func (x *request) again() {
	r := x.r
	if r.stop.Load() {
		r.end()
		return
	}
	if r.w.Rate == 0 {
		x.submit(time.Since(r.begun))
		return
	}
	r.mu.Lock()
	at, ok := r.take()
	if !ok {
		r.idle = append(r.idle, x)
	}
	r.mu.Unlock()
	if ok {
		x.submit(at)
	}
}

// take hands out the next operation of a paced load if it is due. r.mu is held.
func (r *Runner) take() (time.Duration, bool) {
	at := time.Duration(float64(r.due) / r.w.Rate * float64(time.Second))
	if at > time.Since(r.begun) {
		return 0, false
	}
	r.due++
	if r.w.Submitted {
		at = time.Since(r.begun)
	}
	return at, true
}

// paced hands operations to idle slots when they are due, every half millisecond; it ends with the
// load and lets idle slots go.
func (r *Runner) paced() {
	defer close(r.pace)
	t := time.NewTicker(500 * time.Microsecond)
	defer t.Stop()
	for range t.C {
		for {
			r.mu.Lock()
			n := len(r.idle)
			if n > 0 && r.stop.Load() {
				r.idle = r.idle[:n-1]
				r.mu.Unlock()
				r.end()
				continue
			} else if n > 0 {
				if at, ok := r.take(); ok {
					x := r.idle[n-1]
					r.idle = r.idle[:n-1]
					r.mu.Unlock()
					x.submit(at)
					continue
				}
			}
			r.mu.Unlock()
			break
		}
		if r.left.Load() == 0 {
			return
		}
	}
}

func (r *Runner) fail(err error) {
	r.failed.CompareAndSwap(nil, &err)
	r.stop.Store(true)
}

func (r *Runner) end() {
	if r.left.Add(-1) == 0 {
		close(r.ended)
	}
}

// Mark begins an event: Worst looks at operations that end from now on, with their time before it
// included.
func (r *Runner) Mark() { r.event.Store(new(event)) }

func (e *event) note(d time.Duration) {
	for old := e.longest.Load(); int64(d) > old && !e.longest.CompareAndSwap(old, int64(d)); old = e.longest.Load() {
	}
}

// Worst is the longest operation since Mark, those that are still in flight included.
func (r *Runner) Worst() time.Duration {
	e := r.event.Load()
	if e == nil {
		return 0
	}
	longest, now := e.longest.Load(), int64(time.Since(r.begun))
	for i := range r.ios {
		if at := r.ios[i].flying.Load(); at >= 0 {
			longest = max(longest, now-at)
		}
	}
	return time.Duration(longest)
}

// Done is the number of operations that ended well, Errors that of those that did not.
func (r *Runner) Done() int64   { return r.done.Load() }
func (r *Runner) Errors() int64 { return r.errs.Load() }

// Series is the load's course; read it after Stop.
func (r *Runner) Series() *Series { return r.series }

// Pause lets the load run for d; it returns early when the load fails or the context ends.
func (r *Runner) Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.ended:
		return r.ending()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *Runner) ending() error {
	if p := r.failed.Load(); p != nil {
		return *p
	}
	return errors.New("load: ended without a Stop")
}

// More waits until n further operations have ended well, for limit at most.
func (r *Runner) More(ctx context.Context, n int64, limit time.Duration) error {
	want, deadline := r.done.Load()+n, time.Now().Add(limit)
	for r.done.Load() < want {
		if time.Now().After(deadline) {
			return fmt.Errorf("load: %d operations did not complete within %v", n, limit)
		}
		if err := r.Pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Stop lets operations that are in flight end, and returns what made the load fail, if anything
// did.
func (r *Runner) Stop() error {
	r.stop.Store(true)
	<-r.ended
	if r.pace != nil {
		<-r.pace
	}
	if p := r.failed.Load(); p != nil {
		return *p
	}
	return nil
}
