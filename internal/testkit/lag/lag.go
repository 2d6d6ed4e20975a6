// Package lag tells a slow product from a slow machine.
package lag

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Probe measures how late this machine lets a thread run that has asked to be woken, and how long
// its disk takes to make a block durable: a pause that falls into a moment when either took long
// says nothing about the target, which was not let run either, or could not write the record.
type Probe struct {
	begun   time.Time
	starved time.Duration
	mu      sync.Mutex
	max     time.Duration // of scheduling
	disk    time.Duration // the same of the disk
	late    []span        // longer than starved
}

// span is a time, since the probe's begin.
type span struct{ start, end time.Duration }

const (
	probeEvery = 5 * time.Millisecond
	diskEvery  = 100 * time.Millisecond
)

// New makes a probe; a delay longer than starved is one in which the machine starved.
func New(begun time.Time, starved time.Duration) *Probe {
	return &Probe{begun: begun, starved: starved}
}

// Run measures until ctx ends.
func (p *Probe) Run(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		at := time.Now()
		time.Sleep(probeEvery) // what is measured
		late := time.Since(at) - probeEvery
		p.Scheduling(at, late)
	}
}

// Sync writes a block to a file of a folder and makes it durable, again and again until ctx ends.
func (p *Probe) Sync(ctx context.Context, dir string) error {
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
		p.Disk(at, time.Since(at))
	}
}

// Scheduling notes a delay of a thread that began at some time.
func (p *Probe) Scheduling(at time.Time, late time.Duration) { p.add(at, late, &p.max) }

// Disk notes the same of the disk.
func (p *Probe) Disk(at time.Time, late time.Duration) { p.add(at, late, &p.disk) }

func (p *Probe) add(at time.Time, late time.Duration, worst *time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*worst = max(*worst, late)
	if late > p.starved {
		start := at.Sub(p.begun)
		p.late = append(p.late, span{start, start + late})
	}
}

// Worst are the longest delays so far, of scheduling and of the disk.
func (p *Probe) Worst() (scheduling, disk time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.max, p.disk
}

// In tells whether the machine starved somewhere in a time, counted from the probe's begin.
func (p *Probe) In(from, to time.Duration) bool { return p.Longest(from, to) > 0 }

// Longest is the longest delay that overlaps a time and in which the machine starved; 0: there was
// none.
func (p *Probe) Longest(from, to time.Duration) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.late {
		if l.end >= from && l.start <= to {
			longest = max(longest, l.end-l.start)
		}
	}
	return longest
}
