package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

// workload is one row of results.
type workload struct {
	name  string
	op    initiator.Op
	depth int
}

var workloads = []workload{
	{"randwrite_4k_qd1", initiator.OpWrite, 1},
	{"randwrite_4k_qd32", initiator.OpWrite, 32},
	{"randread_4k_qd32", initiator.OpRead, 32},
}

const block = 4096

// sample is one turn of one system.
type sample struct {
	iops     float64
	p50, p99 time.Duration
}

// order of n systems in a round. Within n rounds of an even number (2n of an odd one) each comes
// once (twice) at each place, and once (twice) after each other one: what a turn leaves behind
// falls upon all alike (a Latin square of Williams).
func order(n, round int) []int {
	out := make([]int, n)
	for i := range out {
		k := (i + 1) / 2 // 0, 1, n-1, 2, n-2, …
		if i%2 == 0 {
			k = n - k
		}
		out[i] = (k + round) % n
	}
	if n%2 == 1 && round/n%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

// measure gives every system its turn in each round, each from a settled state.
func measure(ctx context.Context, o options, w workload, systems []*system, settle func(context.Context) error) (map[string][]sample, error) {
	out := map[string][]sample{}
	for round := range o.rounds {
		for _, i := range order(len(systems), round) {
			s := systems[i]
			if err := settle(ctx); err != nil {
				return nil, err
			}
			if _, err := turn(ctx, s, w, o.seconds/3); err != nil { // connections and caches are warm
				return nil, err
			}
			x, err := turn(ctx, s, w, o.seconds)
			if err != nil {
				return nil, err
			}
			out[s.name] = append(out[s.name], x)
		}
	}
	return out, nil
}

// worker keeps one request under way.
type worker struct {
	initiator.IO
	load  *load
	rng   *rand.Rand
	at    time.Time
	times []time.Duration
}

type load struct {
	dev  *initiator.Device
	end  time.Time
	stop atomic.Bool
	left sync.WaitGroup

	mu  sync.Mutex
	err error
}

// turn runs a workload for d; what is under way then is waited for and counts.
func turn(ctx context.Context, s *system, w workload, d time.Duration) (sample, error) {
	begun := time.Now()
	l := &load{dev: s.dev, end: begun.Add(d)}
	defer context.AfterFunc(ctx, func() { l.stop.Store(true) })()
	workers := make([]worker, w.depth)
	l.left.Add(len(workers))
	for i := range workers {
		x := &workers[i]
		x.load, x.rng = l, rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
		x.Op, x.Buf, x.User, x.Done = w.op, make([]byte, block), x, done
		for k := range x.Buf {
			x.Buf[k] = byte(x.rng.Uint32())
		}
		x.submit()
	}
	l.left.Wait()
	took := time.Since(begun)
	if err := l.failure(); err != nil {
		return sample{}, fmt.Errorf("%s: %s: %w", s.name, w.name, err)
	}
	if err := context.Cause(ctx); err != nil {
		return sample{}, err
	}
	var all []time.Duration
	for i := range workers {
		all = append(all, workers[i].times...)
	}
	slices.Sort(all)
	return sample{float64(len(all)) / took.Seconds(), percentile(all, 50), percentile(all, 99)}, nil
}

func (x *worker) submit() {
	x.Off = x.rng.Int64N(size/block) * block
	x.at = time.Now()
	if err := x.load.dev.Submit(&x.IO); err != nil {
		x.load.fail(err)
		x.load.left.Done()
	}
}

// done is called by the device, and submits the next.
func done(io *initiator.IO) {
	x := io.User.(*worker)
	now := time.Now()
	x.times = append(x.times, now.Sub(x.at))
	if io.Err != nil {
		x.load.fail(io.Err)
	}
	if x.load.stop.Load() || now.After(x.load.end) {
		x.load.left.Done()
		return
	}
	x.submit()
}

func (l *load) fail(err error) {
	l.stop.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

func (l *load) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// percentile of sorted values: the smallest that p % of them do not exceed; 0 of none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max((len(sorted)*p+99)/100-1, 0)]
}
