// Package memlimit has Go's garbage collector respect the memory limit of the container that a
// process runs in. Without it the heap may grow to twice what is in use, and the kernel kills the
// process although half of its memory is garbage.
package memlimit

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// percent of the container's limit that Go may use. The rest is for what the runtime does not
// count: the program's text, mapped files, socket buffers in the kernel, the page cache of files
// that are being written.
const percent = 90

// every is how often the limit is read again: it may be changed while the container runs.
const every = 30 * time.Second

// Of is Go's limit in bytes (GOMEMLIMIT) below a container's limit in bytes.
func Of(limit int64) int64 { return limit/100*percent + limit%100*percent/100 }

// Follow sets Go's memory limit to 90 % of that of this process's cgroup, of version 1 or 2, and
// updates it until stop is called or the context ends. The limit of a cgroup above counts too. A
// GOMEMLIMIT that is lower stays in force. Where there is no limit, or it cannot be read, which is
// logged, GOMEMLIMIT holds. Only for a process that has its cgroup to itself.
func Follow(ctx context.Context, log *slog.Logger) (stop func()) {
	f := follower{log: log, own: debug.SetMemoryLimit(-1), read: memlimit.FromCgroup}
	f.once()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				f.once()
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

type follower struct {
	log  *slog.Logger
	own  int64 // what GOMEMLIMIT says, math.MaxInt64 without
	read func() (uint64, error)

	failed bool // the last time
}

// once looks at the limit and sets Go's by it.
func (f *follower) once() {
	limit, err := f.read()
	want := f.own
	switch {
	case err == nil && limit < math.MaxInt64:
		want = min(want, Of(int64(limit)))
	case err == nil || errors.Is(err, memlimit.ErrNoLimit) || errors.Is(err, memlimit.ErrNoCgroup) || errors.Is(err, memlimit.ErrCgroupsNotSupported):
	default:
		if !f.failed {
			f.log.Warn("cannot read the memory limit of this container; keeping GOMEMLIMIT unchanged", "err", err)
		}
		f.failed = true
		return
	}
	f.failed = false
	if old := debug.SetMemoryLimit(want); old != want {
		f.log.Info("set Go's memory limit from the container's limit", "bytes", want, "container", limit)
	}
}
