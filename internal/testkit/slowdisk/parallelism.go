package slowdisk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What the control reads: few enough bytes to be written in a moment, many enough blocks that two
// readers seldom want the same.
const (
	controlFile  = 16 << 20
	controlBlock = 4096
)

// Parallelism is the control that shows what the disk itself can do: the rate of random direct
// reads of 4 KiB of a file on its filesystem, per second, with so many in flight for the duration.
// It writes the file before, with the knobs reset meanwhile, and removes it; nothing else should
// use the disk.
func Parallelism(ctx context.Context, disk *Disk, inflight int, d time.Duration) (iops float64, err error) {
	if inflight < 1 || d <= 0 {
		return 0, fmt.Errorf("slow disk: %d reads in flight for %v, want 1 or more for a positive time", inflight, d)
	}
	name := filepath.Join(disk.Mount, "parallelism")
	defer func() { err = errors.Join(err, os.Remove(name)) }()
	if err := disk.prepare(ctx, name); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range inflight {
		wg.Go(func() {
			if err := readRandom(ctx, f, start.Add(d), &done); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds(), context.Cause(ctx)
}

// readRandom reads one block after the other.
func readRandom(ctx context.Context, f *os.File, until time.Time, done *atomic.Int64) error {
	buf, err := unix.Mmap(-1, 0, controlBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buf) }()
	for time.Now().Before(until) && ctx.Err() == nil {
		if _, err := f.ReadAt(buf, rand.Int64N(controlFile/controlBlock)*controlBlock); err != nil {
			return err
		}
		done.Add(1)
	}
	return nil
}

// prepare writes a file, without the disk's properties, so that reads of it go to the disk.
func (d *Disk) prepare(ctx context.Context, name string) error {
	d.set.Lock()
	defer d.set.Unlock()
	if err := d.call(ctx, "Disk.Set", Knobs{}, &struct{}{}); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(make([]byte, controlFile))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	return errors.Join(err, d.call(ctx, "Disk.Set", d.knobs, &struct{}{}))
}
