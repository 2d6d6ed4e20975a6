package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// window is how long latencies are averaged.
const window = 10 * time.Second

// reader reads blocks at random, one at a time. It is not safe for concurrent use.
type reader struct {
	b       *bench
	r       *rand.Rand
	extents []int64
	p       []byte
}

func (b *bench) reader(seed uint64, extents []int64) *reader {
	return &reader{b, rand.New(rand.NewPCG(seed, 1)), extents, make([]byte, block)}
}

// some are n extents of the LUN at random, and the rest.
func some(seed uint64, n int) (chosen, rest []int64) {
	for _, x := range rand.New(rand.NewPCG(seed, 2)).Perm(lunSize / extent) {
		if len(chosen) < n {
			chosen = append(chosen, int64(x))
		} else {
			rest = append(rest, int64(x))
		}
	}
	return chosen, rest
}

// read reads for so long, and says how many reads there were and how long one took on average.
func (x *reader) read(ctx context.Context, d time.Duration) (n int, mean time.Duration, err error) {
	begun := time.Now()
	for time.Since(begun) < d {
		if err := x.one(ctx); err != nil {
			return n, 0, err
		}
		n++
	}
	return n, time.Since(begun) / time.Duration(max(n, 1)), nil
}

func (x *reader) one(ctx context.Context) error {
	at := x.extents[x.r.IntN(len(x.extents))]*extent + x.r.Int64N(extent/block)*block
	_, err := x.b.dev.ReadAt(ctx, x.p, at)
	return err
}

// nowAndThen reads twenty times a second beside another load, and sums up what that takes.
type nowAndThen struct {
	cancel context.CancelFunc
	done   chan error

	mu  sync.Mutex
	sum time.Duration
	n   int
}

func (b *bench) now(ctx context.Context, x *reader) *nowAndThen {
	ctx, cancel := context.WithCancel(ctx)
	w := &nowAndThen{cancel: cancel, done: make(chan error, 1)}
	go func() {
		t := time.NewTicker(50 * time.Millisecond)
		defer t.Stop()
		for {
			begun := time.Now()
			err := x.one(ctx)
			switch {
			case ctx.Err() != nil:
				w.done <- nil
				return
			case err != nil:
				w.done <- err
				return
			}
			w.mu.Lock()
			w.sum, w.n = w.sum+time.Since(begun), w.n+1
			w.mu.Unlock()
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		}
	}()
	return w
}

// take is what a read took on average since the last call.
func (w *nowAndThen) take() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	mean := w.sum / time.Duration(max(w.n, 1))
	w.sum, w.n = 0, 0
	return mean
}

func (w *nowAndThen) stop() error {
	w.cancel()
	err := <-w.done
	w.done <- nil // for another call
	return err
}

// hotResult is of a working set that fits into the fast member: 8 KiB at random at depth 1.
type hotResult struct {
	SetMiB        int     `json:"hot_set_mib"`
	ColdLatencyMS float64 `json:"cold_latency_ms"` // at the beginning
	HotLatencyMS  float64 `json:"hot_latency_ms"`  // at the end
	MinutesToHot  float64 `json:"minutes_to_hot"`  // until a read took less than 1 ms on average, over 10 seconds
	// ForegroundShare is the rate of reads of extents that do not move, in the worst 10 seconds in
	// which others moved, beside that before anything moved.
	ForegroundShare float64 `json:"foreground_share"`
	// WorstShare is that of the set itself.
	WorstShare      float64 `json:"worst_share"`
	Moves           int64   `json:"hot_moves"`
	PartnerExtents  uint64  `json:"partner_extents"` // on the fast member of the other node in the end
	ReadUSByMembers [2]int  `json:"read_us_fast_and_slow"`
}

const (
	hotExtents = 64
	hotLimit   = 15 * time.Minute
)

func (b *bench) hot(ctx context.Context) (*hotResult, error) {
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	set, rest := some(1, hotExtents)
	hot := b.reader(1, set)
	beside := b.now(ctx, b.reader(2, rest))
	defer beside.stop()
	r := &hotResult{SetMiB: hotExtents * extent >> 20, ForegroundShare: math.Inf(1), WorstShare: math.Inf(1)}
	begun := time.Now()
	cold, mean, err := hot.read(ctx, 2*window)
	if err != nil {
		return nil, err
	}
	cold /= 2
	besideBefore := beside.take()
	r.ColdLatencyMS = ms(mean)
	b.say("%d MiB of %d, cold: %d reads in %v, %.2f ms each; of the rest, %.2f ms", r.SetMiB, lunSize>>20, cold, window, r.ColdLatencyMS, ms(besideBefore))
	for time.Since(begun) < hotLimit {
		before, err := b.moved(ctx)
		if err != nil {
			return nil, err
		}
		n, mean, err := hot.read(ctx, window)
		if err != nil {
			return nil, err
		}
		besideNow := beside.take()
		r.WorstShare = min(r.WorstShare, float64(n)/float64(cold))
		after, err := b.moved(ctx)
		if err != nil {
			return nil, err
		}
		if after > before {
			r.ForegroundShare = min(r.ForegroundShare, float64(besideBefore)/float64(besideNow))
		}
		if r.HotLatencyMS = ms(mean); mean < time.Millisecond {
			if r.MinutesToHot == 0 {
				r.MinutesToHot = time.Since(begun).Minutes()
				b.say("hot after %.1f minutes", r.MinutesToHot)
			}
			if after == before && after >= hotExtents {
				break
			}
		}
		b.say("%d extents moved; a read takes %.2f ms, of the rest %.2f ms", after, ms(mean), ms(besideNow))
	}
	if r.Moves, err = b.moved(ctx); err != nil {
		return nil, err
	}
	v, err := b.tiering(ctx, 0)
	if err != nil {
		return nil, err
	}
	r.ReadUSByMembers = [2]int{int(v.Fast.ReadUs), int(v.Capacity.ReadUs)}
	if _, err = b.settled(ctx, 1); err == nil {
		r.PartnerExtents, err = b.partner(ctx)
	}
	if err := beside.stop(); err != nil {
		return nil, err
	}
	b.say("hot: %.2f ms, from %.2f; foreground share %.2f; %d extents on the other node's fast member", r.HotLatencyMS, r.ColdLatencyMS, r.ForegroundShare, r.PartnerExtents)
	return r, err
}

// uniformResult is of a set three times as large as the fast member, evenly warm.
type uniformResult struct {
	Filled float64 `json:"uniform_filled"` // share of the set that moved until the fast member was full
	Moved  float64 `json:"uniform_moved"`  // and that moved in as many minutes afterwards
	Over   float64 `json:"uniform_minutes"`
}

const (
	fillLimit    = 20 * time.Minute
	uniformTime  = 10 * time.Minute
	quietRounds  = 2
	roundsLength = time.Minute
)

func (b *bench) uniform(ctx context.Context) (*uniformResult, error) {
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	all, _ := some(3, lunSize/extent)
	x := b.reader(3, all)
	full := float64(len(all))
	r := &uniformResult{}
	begun, last, quiet := time.Now(), int64(0), 0
	for quiet < quietRounds || last == 0 {
		if time.Since(begun) > fillLimit {
			return nil, fmt.Errorf("extents still move after %v: %d of %d", fillLimit, last, len(all))
		}
		_, mean, err := x.read(ctx, roundsLength)
		if err != nil {
			return nil, err
		}
		now, err := b.moved(ctx)
		if err != nil {
			return nil, err
		}
		if quiet++; now > last {
			quiet = 0
		}
		last = now
		b.say("%d extents moved; a read takes %.2f ms", now, ms(mean))
	}
	r.Filled = float64(last) / full
	if _, _, err := x.read(ctx, uniformTime); err != nil {
		return nil, err
	}
	now, err := b.moved(ctx)
	if err != nil {
		return nil, err
	}
	r.Moved, r.Over = float64(now-last)/full, uniformTime.Minutes()
	b.say("filled with %.3f of the set; then %.4f of it moved in %v", r.Filled, r.Moved, uniformTime)
	return r, nil
}

// swingResult is of two sets, each as large as the fast member, that take turns.
type swingResult struct {
	Turns       int       `json:"swing_turns"`
	TurnMinutes float64   `json:"swing_turn_minutes"`
	Moves       []int64   `json:"swing_moves"`      // in each turn
	LatencyMS   []float64 `json:"swing_latency_ms"` // at the end of each turn
	OfSet       float64   `json:"swing_moves_a_turn_of_set"`
}

const (
	swingTurns   = 6
	swingTurn    = 3 * time.Minute
	swingExtents = 150
)

func (b *bench) swing(ctx context.Context) (*swingResult, error) {
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	one, rest := some(4, swingExtents)
	sets := [2]*reader{b.reader(4, one), b.reader(5, rest[:swingExtents])}
	r := &swingResult{Turns: swingTurns, TurnMinutes: swingTurn.Minutes()}
	last := int64(0)
	for turn := range swingTurns {
		_, _, err := sets[turn%2].read(ctx, swingTurn-window)
		if err != nil {
			return nil, err
		}
		_, mean, err := sets[turn%2].read(ctx, window)
		if err != nil {
			return nil, err
		}
		now, err := b.moved(ctx)
		if err != nil {
			return nil, err
		}
		r.Moves, r.LatencyMS = append(r.Moves, now-last), append(r.LatencyMS, ms(mean))
		b.say("turn %d: %d extents moved, a read takes %.2f ms in the end", turn+1, now-last, ms(mean))
		last = now
	}
	r.OfSet = float64(last) / swingTurns / swingExtents
	return r, nil
}

// settled waits until nothing has moved at either node for so many rounds.
func (b *bench) settled(ctx context.Context, rounds int) (int64, error) {
	last, quiet := int64(-1), 0
	for range 30 {
		now, err := b.moved(ctx)
		if err != nil {
			return 0, err
		}
		if now == last {
			quiet++
		} else {
			quiet = 0
		}
		if last = now; quiet >= rounds {
			return now, nil
		}
		t := time.NewTimer(roundsLength)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return 0, ctx.Err()
		}
	}
	return 0, errors.New("extents move all the time")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
