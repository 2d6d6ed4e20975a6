package extents

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// The simulator plays one LUN over several volumes: hosts that write, read and flush, moves that
// are cut off, full volumes, blocks that cannot be read, sweeps, and crashes at every step of any
// of them. One operation of a disk runs at a time, which one is drawn; a crash keeps of each block
// any of the contents that it had since its last flush.

var (
	simSeeds = flag.Int("extents.seeds", 400, "histories of TestMovesAndCrashes")
	simBase  = flag.Uint64("extents.base", 1, "the first seed")
)

const (
	simSize   = 2*Size + 5*simBlock // the last extent is short
	simBlock  = 4096
	simVolume = 4
)

var (
	errCrash = errors.New("the machine has crashed")
	errFull  = errors.New("the volume is full")
)

// world is one life of the machine, and what is known of the blocks over all lives.
type world struct {
	t       *testing.T
	r       *rand.Rand
	s       *Spread
	path    string // of the map
	disks   map[uint8]*disk
	crashed bool // changes only while no other goroutine of the world runs
	left    int  // operations until the crash
	tear    func()

	mu      sync.Mutex // of what follows: who was let go by a lock runs beside who has a turn
	turns   []turn
	last    uint64             // write
	flushed map[int64]uint64   // the last write of a block that a flush covers
	issued  map[int64][]uint64 // writes of a block since then, also failed ones
	played  map[string]int
}

type turn struct {
	what string
	at   int64
	go_  chan bool // false: the machine has crashed
}

// step waits for its turn.
func (w *world) step(what string, at int64) error {
	if w.crashed {
		return errCrash
	}
	x := turn{what, at, make(chan bool)}
	w.mu.Lock()
	w.turns = append(w.turns, x)
	w.mu.Unlock()
	if !<-x.go_ {
		return errCrash
	}
	return nil
}

// count counts what was played.
func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.played[what]++
}

// run gives turns until all have ended, or the machine crashes.
func (w *world) run() {
	for {
		synctest.Wait()
		if len(w.turns) == 0 {
			return
		}
		slices.SortStableFunc(w.turns, func(x, y turn) int { return cmp.Or(cmp.Compare(x.what, y.what), cmp.Compare(x.at, y.at)) })
		i := w.r.IntN(len(w.turns))
		x := w.turns[i]
		w.turns = slices.Delete(w.turns, i, i+1)
		if w.left--; w.left < 0 {
			w.crashed = true
			if x.what == "map" {
				w.tear()
			}
			w.count("crash in " + x.what)
			x.go_ <- false
			for len(w.turns) > 0 {
				x, w.turns = w.turns[0], w.turns[1:]
				x.go_ <- false
				synctest.Wait()
			}
			return
		}
		x.go_ <- true
	}
}

// host writes, reads and flushes blocks that are its own.
func (w *world) host(r *rand.Rand, own []int64, n int) {
	current := map[int64]uint64{} // what a read has to find
	since := map[int64]uint64{}   // the last write of a block since the last flush of this host began
	for range n {
		b, n := own[r.IntN(len(own))], int64(1)
		if slices.Contains(own, b+1) && r.IntN(2) == 0 {
			n = 2
		}
		var err error
		switch r.IntN(5) {
		case 0, 1, 2:
			x := w.issue(b, n, r.IntN(4) == 0)
			err = w.write(b, n, x)
			for i := b; i < b+n && !errors.Is(err, errCrash); i++ {
				if err == nil {
					current[i], since[i] = x, x
					continue
				}
				// It may have taken effect in part. What it has come to is what is read now.
				w.count("write refused")
				delete(since, i)
				got, rerr := w.read(i)
				if rerr != nil {
					err = rerr
					break
				}
				current[i] = got
			}
			if errors.Is(err, errFull) {
				err = nil
			}
		case 3:
			var got uint64
			got, err = w.read(b)
			if want, ok := current[b]; err == nil && ok && got != want {
				w.t.Errorf("block %d reads %d, it was written as %d", b, got, want)
			}
		case 4:
			covered := since
			since = map[int64]uint64{}
			if err = w.s.Sync(); err == nil {
				w.covered(covered)
			}
		}
		if errors.Is(err, errCrash) {
			return
		}
		if err != nil {
			w.t.Error(err)
		}
	}
}

// issue notes a write, or a discard, before it begins.
func (w *world) issue(b, n int64, discard bool) (x uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last++; !discard {
		x = w.last
	}
	for i := b; i < b+n; i++ {
		w.issued[i] = append(w.issued[i], x)
	}
	return x
}

// covered notes the writes that a flush covers, of which none was followed by another one of its
// block before the flush began.
func (w *world) covered(last map[int64]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for b, x := range last {
		w.flushed[b], w.issued[b] = x, nil
	}
	w.played["flush"]++
}

func (w *world) write(b, n int64, x uint64) error {
	return w.s.Change(b*simBlock, n*simBlock, func(i Image, off, length int64) error {
		if x == 0 {
			return i.Punch(off, length)
		}
		p := make([]byte, length)
		for at := int64(0); at < length; at += simBlock {
			put(p[at:], x)
		}
		return i.WriteAt(p, off)
	})
}

func (w *world) read(b int64) (got uint64, err error) {
	p := make([]byte, simBlock)
	err = w.s.Read(b*simBlock, simBlock, func(i Image, off, _ int64) error { return i.ReadAt(p, off) })
	return get(p), err
}

func (w *world) mover(r *rand.Rand, n int) {
	for range n {
		ctx, cancel := context.WithCancel(context.Background())
		if r.IntN(6) == 0 {
			cancel()
		}
		extent, to := r.Int64N(Extents(simSize)), uint8(1+r.IntN(simVolume))
		err := w.s.MoveLike(ctx, extent, to, w.relative(r, extent, to))
		cancel()
		switch {
		case err == nil:
			w.count("moved")
		case errors.Is(err, errCrash):
			return
		case errors.Is(err, ErrMoving), errors.Is(err, context.Canceled):
			w.count("move given up")
		case errors.Is(err, ErrTargetFull):
			w.count("target full")
		case errors.Is(err, ErrSpoilt):
			w.count("spoilt")
		default:
			w.t.Errorf("move: %v", err)
		}
	}
}

// relative has the new place of an extent share what another LUN has there: a part of what the
// extent is or was, and other things.
func (w *world) relative(r *rand.Rand, extent int64, to uint8) func() error {
	if r.IntN(2) == 0 {
		return nil
	}
	return func() error {
		if err := w.step("share", extent); err != nil {
			return err
		}
		w.count("shared")
		d := w.disks[to]
		for b := extent * (Size / simBlock); b < min((extent+1)*(Size/simBlock), simSize/simBlock); b++ {
			switch now := w.disks[w.s.m.At(extent)].now[b]; {
			case r.IntN(40) == 0:
				d.set(b, 1<<40+uint64(b)) // what no host of this LUN has written
			case now > 0 && r.IntN(3) > 0:
				d.set(b, now)
			}
		}
		if r.IntN(8) == 0 {
			return errFull
		}
		return nil
	}
}

// fates makes volumes full, and gives them room.
func (w *world) fates(r *rand.Rand, n int) {
	for range n {
		v, full := uint8(1+r.IntN(simVolume)), r.IntN(3) == 0
		if w.step("fate", int64(v)) != nil {
			return
		}
		w.disks[v].full = full
	}
}

// live plays one life; the world is that after it.
func (w *world) live(hosts [][]int64) {
	w.crashed, w.left = false, 5+w.r.IntN(500)
	m, err := Open(w.path, owner, simSize, &Hooks{Write: func(_ string, off, length int64) error {
		w.tear = func() { w.torn(off, length) }
		return w.step("map", off)
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	images := map[uint8]Image{}
	for v, d := range w.disks {
		images[v] = d
	}
	w.s, err = NewSpread(m, images, simSize, Config{
		NoSpace: func(err error) bool { return errors.Is(err, errFull) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	rng := func() *rand.Rand { return rand.New(rand.NewPCG(w.r.Uint64(), 1)) }
	for _, own := range hosts {
		go w.host(rng(), own, 30)
	}
	for range 2 {
		go w.mover(rng(), 6)
	}
	go w.fates(rng(), 10)
	go func() {
		if n, err := w.s.Sweep(context.Background()); err == nil && n > 0 {
			w.count("swept")
		}
	}()
	w.run()
	if !w.crashed {
		w.count("no crash")
	}
	synctest.Wait()
	if err := m.Close(); err != nil {
		w.t.Error(err)
	}
}

// torn leaves a part of a block of the map.
func (w *world) torn(off, length int64) {
	f, err := os.OpenFile(w.path, os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, w.r.IntN(int(length)))
	for i := range p {
		p[i] = byte(w.r.Uint32())
	}
	if w.r.IntN(2) == 0 {
		if _, err := f.WriteAt(p, off); err != nil {
			w.t.Fatal(err)
		}
	}
}

// restart is what a crash of the machine leaves, and looks at it.
func (w *world) restart() {
	for v := range uint8(simVolume) {
		w.disks[v+1] = w.disks[v+1].crash(w)
	}
	m, err := Open(w.path, owner, simSize, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer m.Close()
	for b := range int64(simSize / simBlock) {
		x := w.disks[m.At(b/(Size/simBlock))].now[b]
		switch {
		case x == w.flushed[b], slices.Contains(w.issued[b], x):
		default:
			w.t.Errorf("after a crash block %d is %d; %d was flushed, and %d were written since", b, x, w.flushed[b], w.issued[b])
		}
		// What is there now was on the disk, and nothing older can come back.
		w.flushed[b], w.issued[b] = x, nil
	}
}

// clean checks that a sweep leaves nothing at places that the map does not name.
func (w *world) clean() {
	w.crashed, w.left = false, 1<<30
	m, err := Open(w.path, owner, simSize, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer m.Close()
	images := map[uint8]Image{}
	for v, d := range w.disks {
		images[v] = d
	}
	s, err := NewSpread(m, images, simSize, Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		if _, err := s.Sweep(context.Background()); err != nil {
			w.t.Error(err)
		}
	}()
	w.run()
	for v, d := range w.disks {
		for _, b := range d.blocks() {
			if at := m.At(b / (Size / simBlock)); at != v {
				w.t.Errorf("block %d is still in volume %d; its extent lies in %d", b, v, at)
			}
		}
	}
}

func TestMovesAndCrashes(t *testing.T) {
	played := map[string]int{}
	dir := t.TempDir()
	for seed := *simBase; seed < *simBase+uint64(*simSeeds) && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := &world{t: t, r: rand.New(rand.NewPCG(seed, 77)), path: filepath.Join(dir, fmt.Sprint(seed)), disks: map[uint8]*disk{},
				flushed: map[int64]uint64{}, issued: map[int64][]uint64{}, played: played}
			if err := Create(w.path, owner, []uint8{1, 2}, simSize); err != nil {
				t.Fatal(err)
			}
			for v := range uint8(simVolume) {
				w.disks[v+1] = newDisk(w)
			}
			const each = Size / simBlock
			hosts := [][]int64{{0, 1, each + 3, 2 * each}, {64, 65, each - 1, each, 2*each + 4}, {100, each + 1, each + 2, 2*each + 1}}
			for range 4 {
				w.live(hosts)
				w.restart()
			}
			w.clean()
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
	t.Logf("%v", played)
	for _, what := range []string{"moved", "move given up", "target full", "spoilt", "shared", "write refused", "flush", "swept", "no crash",
		"crash in map", "crash in read", "crash in write", "crash in punch", "crash in sync", "crash in look"} {
		if played[what] == 0 {
			t.Errorf("%q was never played", what)
		}
	}
}
