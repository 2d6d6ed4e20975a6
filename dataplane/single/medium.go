package single

import (
	"bytes"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/rangelock"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/sums"
	"github.com/gemel-storage/gemel/internal/clock"
)

// maxWait is how old a write may be when it starts after having waited for a lock (R11b).
const maxWait = time.Second

// Medium is a scsi.Medium with one replica: a file, with write-back caching in the page cache. It
// is what benchmarks and conformance tests of the device server stand on; a pair's LUN is another
// medium.
//
// An operation runs on the goroutine that submits it, under its range lock. Only one that has to
// wait for a lock completes later, on a goroutine that Close waits for.
type Medium struct {
	file *store.File
	log  *slog.Logger
	unit atomic.Pointer[scsi.Unit]
	size atomic.Int64

	mu    sync.Mutex
	locks rangelock.Table
	free  *request
	ready *request // granted by a Release under way
	wg    sync.WaitGroup
}

// request is an operation's lock, kept for reuse.
type request struct {
	rangelock.Request
	op   *scsi.Op
	next *request
}

// NewMedium makes a medium of an open LUN. The caller closes the file after the medium.
func NewMedium(file *store.File, log *slog.Logger) (*Medium, error) {
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	l := &Medium{file: file, log: log}
	l.size.Store(size)
	return l, nil
}

// Bind names the unit that the medium is beneath; its reservations are judged when an operation
// starts.
func (l *Medium) Bind(u *scsi.Unit) { l.unit.Store(u) }

// Resize takes over the size of a file that has grown.
func (l *Medium) Resize() error {
	size, err := l.file.Size()
	if err == nil {
		l.size.Store(size)
	}
	return err
}

// Close waits for the operations that waited for locks. Nothing is submitted any more.
func (l *Medium) Close() { l.wg.Wait() }

// Access is always ready: there is no other node.
func (l *Medium) Access() scsi.Access { return scsi.AccessReady }

// Submit implements scsi.Medium.
func (l *Medium) Submit(op *scsi.Op) bool {
	if op.Kind == scsi.OpFlush { // covers what was acknowledged, which needs no lock any more
		op.Result = l.start(op)
		return true
	}
	off, end := span(op)
	l.mu.Lock()
	r := l.free
	if r == nil {
		r = &request{}
		r.Granted = func(*rangelock.Request) { r.next, l.ready = l.ready, r } // l.mu is held; bound once, not per operation
	} else {
		l.free = r.next
	}
	const in = sums.BlockSize - 1 // whole blocks, of which checksums are
	r.Off, r.End, r.Shared, r.op = off&^in, (end+in)&^in, !op.Kind.Writes(), op
	op.Medium = r
	held := l.locks.Acquire(&r.Request)
	l.mu.Unlock()
	if !held {
		return false
	}
	op.Result = l.start(op)
	l.release(r)
	return true
}

// span is the range that an operation locks.
func span(op *scsi.Op) (off, end int64) {
	if op.Kind != scsi.OpUnmap {
		return op.Off, op.Off + op.Len
	}
	for i, r := range op.Ranges {
		if i == 0 || r.Off < off {
			off = r.Off
		}
		end = max(end, r.Off+r.Len)
	}
	return off, end
}

// release gives the lock back and starts what waited for it elsewhere, so that the submitter is not
// kept.
func (l *Medium) release(r *request) {
	l.mu.Lock()
	l.locks.Release(&r.Request)
	l.recycle(r)
	l.startReady()
	l.mu.Unlock()
}

func (l *Medium) recycle(r *request) {
	r.op = nil
	r.next, l.free = l.free, r
}

func (l *Medium) startReady() {
	for l.ready != nil {
		r := l.ready
		l.ready, r.next = r.next, nil
		l.wg.Go(func() { l.late(r) })
	}
}

// late runs an operation that had to wait.
func (l *Medium) late(r *request) {
	op := r.op
	if op.Kind.Writes() && clock.Boottime()-op.Arrived > int64(maxWait) {
		op.Result = scsi.Busy
	} else {
		op.Result = l.start(op)
	}
	l.release(r)
	op.Done(op)
}

// Abort implements scsi.Medium: what waits for its lock ends, what has it runs on.
func (l *Medium) Abort(op *scsi.Op) {
	l.mu.Lock()
	r, _ := op.Medium.(*request)
	if r == nil || r.op != op || !l.locks.Cancel(&r.Request) {
		l.mu.Unlock()
		return
	}
	l.recycle(r)
	l.startReady()
	l.mu.Unlock()
	op.Result = scsi.Aborted
	op.Done(op)
}

// start executes an operation under its lock.
func (l *Medium) start(op *scsi.Op) scsi.Result {
	if u := l.unit.Load(); u != nil && u.PR().Conflict(&op.Nexus, scsi.KindOf(op.Kind)) {
		return scsi.ReservationConflict
	}
	if off, end := span(op); off < 0 || end < off || end > l.size.Load() {
		return scsi.OutOfRange
	}
	switch op.Kind {
	case scsi.OpRead:
		return l.read(op)
	case scsi.OpFlush:
		return l.result(l.file.Sync(), scsi.WriteError)
	case scsi.OpMapped:
		run, data, err := l.file.Extents(op.Off, op.Len)
		op.Extent, op.Mapped = scsi.Range{Off: op.Off, Len: run}, data
		return l.result(err, scsi.ReadError)
	case scsi.OpCompareWrite:
		if res := l.compare(op); res != scsi.OK {
			return res
		}
		fallthrough
	case scsi.OpWrite:
		if op.FUA {
			return l.result(l.file.WriteAtDurable(op.Data, op.Off), scsi.WriteError)
		}
		return l.result(l.file.WriteAt(op.Data, op.Off), scsi.WriteError)
	case scsi.OpUnmap, scsi.OpWriteSame:
		err := l.change(op)
		if err == nil && op.FUA {
			err = l.file.Sync()
		}
		return l.result(err, scsi.WriteError)
	}
	return scsi.Failed
}

func (l *Medium) read(op *scsi.Op) scsi.Result {
	if op.FUA { // what a read with FUA returns is on the medium (SBC-3 §4.15.1)
		if err := l.file.Sync(); err != nil {
			return l.result(err, scsi.WriteError)
		}
	}
	return l.result(l.file.ReadAt(op.Data, op.Off), scsi.ReadError)
}

func (l *Medium) change(op *scsi.Op) error {
	if op.Kind == scsi.OpUnmap {
		for _, r := range op.Ranges {
			if err := l.file.Discard(r.Off, r.Len); err != nil {
				return err
			}
		}
		return nil
	}
	if store.AllZero(op.Data) {
		return l.file.Zero(op.Off, op.Len)
	}
	chunk := bytes.Repeat(op.Data, int(min(op.Len, 256<<10))/len(op.Data))
	for off, left := op.Off, op.Len; left > 0; {
		n := min(left, int64(len(chunk)))
		if err := l.file.WriteAt(chunk[:n], off); err != nil {
			return err
		}
		off, left = off+n, left-n
	}
	return nil
}

func (l *Medium) compare(op *scsi.Op) scsi.Result {
	have := make([]byte, len(op.Verify))
	if err := l.file.ReadAt(have, op.Off); err != nil {
		return l.result(err, scsi.ReadError)
	}
	for i := range have {
		if have[i] != op.Verify[i] {
			op.MiscompareAt = int64(i)
			return scsi.Miscompare
		}
	}
	return scsi.OK
}

// result maps a store error; other is what a media error means for this operation.
func (l *Medium) result(err error, other scsi.Result) scsi.Result {
	switch {
	case err == nil:
		return scsi.OK
	case errors.Is(err, store.ErrNoSpace):
		return scsi.NoSpace
	case errors.Is(err, store.ErrRange):
		return scsi.OutOfRange
	}
	if l.log != nil {
		l.log.Error("medium", "err", err)
	}
	return other
}
