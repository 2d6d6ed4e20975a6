// Package slowdisk makes an XFS filesystem whose disk has the latency, parallelism, bandwidth and
// faults that a test or a benchmark sets, while it runs: XFS on a loop device with direct I/O, on a
// file of a FUSE filesystem with asynchronous direct I/O, on a sparse file. The FUSE server is a
// process of its own, this program started once more, because XFS would fail if it ended first.
//
// What it cannot show: the loop driver gives the disk at most 128 requests at a time, and none that
// come after a flush until the flush has ended. The data is in the page cache of the sparse file's
// filesystem and is not flushed further. A request costs a copy through FUSE, some tens of
// microseconds of a processor.
package slowdisk

import (
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Knobs are what the disk does to requests. The zero value lets everything pass at once. A change
// applies to requests that already wait as well.
type Knobs struct {
	// ReadLatency, WriteLatency and FlushLatency are added to each request of a kind; requests wait
	// side by side. A wait is never shorter, and up to about 1 ms longer. Discards count as writes
	// of no bytes.
	ReadLatency, WriteLatency, FlushLatency time.Duration
	// MaxParallel is how many reads and writes are served at a time; the others wait in their
	// order. 0: no limit.
	MaxParallel int
	// ReadBandwidth and WriteBandwidth are in bytes per second, without bursts: n bytes after an
	// idle time take n/bandwidth. 0: no limit.
	ReadBandwidth, WriteBandwidth int64
	// ReadErrors, WriteErrors and FlushErrors fail requests of a kind with EIO, after their
	// wait. XFS shuts down when it cannot write or flush its log: see Disk.Remount.
	ReadErrors, WriteErrors, FlushErrors bool
	// ErrorsAt are the parts of the disk at which reads and writes fail; none: all of it. Flushes
	// have no place.
	ErrorsAt []Range
	// NoSpace has writes and flushes that fail do so with ENOSPC, as those of a thin volume whose
	// pool is full.
	NoSpace bool
	// Stuck holds back all requests that are not being served yet, until it is reset.
	Stuck bool
}

// Range is a part of the disk, in bytes.
type Range struct{ Off, Len int64 }

// failsAt tells whether a request of n bytes meets a part at which requests fail. One of no bytes,
// as a discard is, does so only where all parts do.
func (k *Knobs) failsAt(off int64, n int) bool {
	return len(k.ErrorsAt) == 0 || slices.ContainsFunc(k.ErrorsAt, func(r Range) bool { return off < r.Off+r.Len && r.Off < off+int64(n) })
}

// errno is what a write or flush that fails is answered.
func (k *Knobs) errno() syscall.Errno {
	if k.NoSpace {
		return syscall.ENOSPC
	}
	return syscall.EIO
}

func (k Knobs) check() error {
	for _, f := range []struct {
		name  string
		value int64
	}{{"ReadLatency", int64(k.ReadLatency)}, {"WriteLatency", int64(k.WriteLatency)}, {"FlushLatency", int64(k.FlushLatency)},
		{"MaxParallel", int64(k.MaxParallel)}, {"ReadBandwidth", k.ReadBandwidth}, {"WriteBandwidth", k.WriteBandwidth}} {
		if f.value < 0 {
			return fmt.Errorf("slow disk: %s is %d, want 0 or more", f.name, f.value)
		}
	}
	for _, r := range k.ErrorsAt {
		if r.Off < 0 || r.Len <= 0 {
			return fmt.Errorf("slow disk: ErrorsAt has %d bytes at %d, want 1 or more at 0 or more", r.Len, r.Off)
		}
	}
	return nil
}

// Stats counts requests that have ended, failed ones as well, since the disk was started. Requests
// are those of the FUSE server: the kernel merges and splits what XFS asks for.
type Stats struct {
	Reads, Writes, Flushes uint64
	ReadBytes, WriteBytes  uint64
	InFlight               int // reads and writes that have come and not ended
	// MaxInFlight is the most there were since the knobs were last set, MaxServed the most of those
	// that did not wait for MaxParallel.
	MaxInFlight, MaxServed int
}
