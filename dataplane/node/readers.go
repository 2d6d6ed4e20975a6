package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// Reads that the page cache cannot answer, and writes that have to read before, are done by
// readers, goroutines that live as long as there is something to read: neither the goroutine of a
// connection nor the one that reads the link waits for a disk. What may wait for a reader is
// bounded where it comes from: by the command windows and the read memory of sessions, and by the
// window of what is forwarded.
const (
	// readersMax is how many reads of one backing volume are at the disk at once, for each of its
	// places if it has members. NVMe and network disks give most of their IOPS at 32 to 64, SATA
	// queues 32, and the kernel's own queue for a disk holds 64 and more. Each is a thread while it
	// waits.
	readersMax = 64
	// readingMax bounds the bytes of those reads, so that 64 long ones do not make each of them
	// last for seconds at a disk of tens of MiB a second; it is what 3 GB/s deliver in 5 ms. A
	// single read may be longer.
	readingMax = 16 << 20
)

// readers are those of one backing volume. Reads begin in order of arrival.
type readers struct {
	tasks   *tasks       // of the node, which waits for them
	disks   int          // how many places the volume has; 0 counts as 1
	waiting atomic.Int32 // length of queue

	mu    sync.Mutex
	busy  int
	bytes int64
	queue []reading // from next on
	next  int
}

type reading struct {
	size int64
	do   func()
}

// saturated reports that reads wait for a reader. Then the cache is not probed: a probe that misses
// would put one more read to the disk than it likes.
func (r *readers) saturated() bool { return r.waiting.Load() > 0 }

// read does a read, on a reader. It never blocks.
func (r *readers) read(size int64, do func()) {
	x := reading{size, do}
	r.mu.Lock()
	if r.next < len(r.queue) || !r.room(size) {
		r.queue = append(r.queue, x)
		r.waiting.Add(1)
		r.mu.Unlock()
		return
	}
	r.take(size)
	r.mu.Unlock()
	r.tasks.Go(taskCommand, func() { r.work(x) })
}

func (r *readers) room(size int64) bool {
	disks := max(r.disks, 1)
	return r.busy == 0 || r.busy < disks*readersMax && r.bytes+size <= int64(disks)*readingMax
}

func (r *readers) take(size int64) {
	r.busy++
	r.bytes += size
}

// work is a reader's life.
func (r *readers) work(x reading) {
	for {
		x.do()
		r.mu.Lock()
		r.busy--
		r.bytes -= x.size
		more := r.due()
		r.mu.Unlock()
		if len(more) == 0 {
			return
		}
		for _, y := range more[1:] { // a long read has made room for several
			r.tasks.Go(taskCommand, func() { r.work(y) })
		}
		x = more[0]
	}
}

// due takes what may begin now from the queue. mu is held.
func (r *readers) due() (out []reading) {
	first := r.next
	for r.next < len(r.queue) && r.room(r.queue[r.next].size) {
		r.take(r.queue[r.next].size)
		r.next++
	}
	r.waiting.Add(int32(first - r.next))
	out = append(out, r.queue[first:r.next]...)
	clear(r.queue[first:r.next])
	switch {
	case r.next == len(r.queue):
		r.queue, r.next = r.queue[:0], 0
	case r.next >= 1024: // else a queue that is never empty would grow for ever
		k := copy(r.queue, r.queue[r.next:])
		clear(r.queue[k:])
		r.queue, r.next = r.queue[:k], 0
	}
	return out
}

// readersOf are the readers of a backing volume. The caller holds md.mu.
func (n *Node) readersOf(v *store.BackingVolume) *readers {
	r := n.io.readers[v]
	if r == nil {
		r = &readers{tasks: &n.run.tasks, disks: len(v.Places())}
		n.io.readers[v] = r
	}
	return r
}

// reads reports an op that only looks.
func reads(k scsi.OpKind) bool { return k == scsi.OpRead || k == scsi.OpMapped }

// look does a read or OpMapped for the local store: at once if the page cache has all of it, else
// on a reader. probe says whether the goroutine at hand may look at the cache, which may begin to
// read the disk.
func (n *Node) look(a *actions, o *pair.Op, probe bool) {
	e := n.md.tables.Load().units[o.LUN]
	if e == nil {
		n.storeDone(a, o, scsi.Unavailable)
		return
	}
	s := o.Cmd
	cached := probe && s.Kind == scsi.OpRead && !e.readers.saturated() && e.file.ReadCached(s.Data, s.Off)
	if s.Kind == scsi.OpRead {
		n.noteRead(e, s, a.now, cached)
	}
	if cached {
		n.storeDone(a, o, scsi.OK)
		return
	}
	if s.Kind == scsi.OpRead {
		e.tier.read(s.Off, s.Len)
	}
	e.readers.read(int64(len(s.Data)), func() {
		n.mu.Lock()
		n.m.StoreBegins(n.boottime(), o)
		n.mu.Unlock()
		begun := n.boottime()
		result := n.runOp(o, false)
		if s.Kind == scsi.OpRead {
			took := time.Duration(n.boottime() - begun)
			e.counts.AddDisk(took)
			e.tier.didRead(e.file, s.Off, took)
		}
		n.storeDoneAsync(o, result)
	})
}
