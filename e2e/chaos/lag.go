package chaos

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lagProbe measures how late this machine lets a thread run that has asked to be woken, and how long its disk takes to make a
// block durable: a pause that falls into a moment when either took long says nothing about the target, which was not let
// run either, or could not write the record.
type lagProbe struct {
	begun time.Time
	mu    sync.Mutex
	max   time.Duration // of scheduling
	disk  time.Duration // the same of the disk
	late  []pause       // longer than starved
}

const (
	probeEvery = 5 * time.Millisecond
	diskEvery  = 100 * time.Millisecond
	starved    = 100 * time.Millisecond
)

func newLagProbe(begun time.Time) *lagProbe { return &lagProbe{begun: begun} }

// run measures until ctx ends.
func (p *lagProbe) run(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		at := time.Now()
		time.Sleep(probeEvery) // what is measured
		late := time.Since(at) - probeEvery
		p.add(at, late, &p.max)
	}
}

// sync writes a block to a file of a folder and makes it durable, again and again until ctx ends.
func (p *lagProbe) sync(ctx context.Context, dir string) error {
	f, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4096)
	t := time.NewTicker(diskEvery)
	defer t.Stop()
	for n := byte(1); ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		block[0] = n
		at := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		p.add(at, time.Since(at), &p.disk)
	}
}

// add notes a delay that began at some time.
func (p *lagProbe) add(at time.Time, late time.Duration, worst *time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*worst = max(*worst, late)
	if late > starved {
		start := int64(at.Sub(p.begun))
		p.late = append(p.late, pause{start: start, end: start + int64(late), what: "starved"})
	}
}

// worst are the longest delays so far, of scheduling and of the disk; in tells whether the machine starved somewhere in a time.
func (p *lagProbe) worst() (scheduling, disk time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.max, p.disk
}

func (p *lagProbe) in(from, to int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.late {
		if l.end >= from && l.start <= to {
			return true
		}
	}
	return false
}
