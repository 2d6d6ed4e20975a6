package nodesim

import (
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/work"
)

// disk is the disk of one node, or the disks: each member of its backing volume is one, all of the
// same make. The files are real ones, in memory; what is simulated is how long a disk takes, and
// that it fails. It writes with a bandwidth: a flush takes as long as there is dirty data.
type disk struct {
	mu    sync.Mutex
	rng   *rand.Rand
	speed speed
	hit   float64                // of reads, how many the page cache answers
	cold  func(path string) bool // files of which it answers none
	held  time.Duration          // how long a write into the page cache of one of those takes: the file is locked
	busy  map[string]time.Time   // by member: when that disk has done what it was asked for so far; it begins a new request then
	work  work.Disk              // what it has done, as the kernel counts it
	last  time.Time              // until when the requests so far keep it at work
	dirty map[string]int64
	fail  map[string]int // how many of the next operations of a kind end with EIO
	seen  map[string]int // operations by kind
	full  float64        // how likely it is that there is no room for a new file, or for a longer one
}

// speed is what the disk can do.
type speed struct {
	read, flush time.Duration // latency
	bandwidth   float64       // bytes a second
}

// oneBlock is what a flush has to write, in bytes, of checksums, which come in blocks, and of a
// hole that was punched: the filesystem's record of it.
const oneBlock = 4096

var usualSpeed = speed{read: time.Millisecond, flush: time.Millisecond, bandwidth: 400e6}

func newDisk(seed uint64) *disk {
	return &disk{rng: rand.New(rand.NewPCG(seed, 7)), speed: usualSpeed, hit: 0.7, dirty: map[string]int64{}, busy: map[string]time.Time{}, fail: map[string]int{}, seen: map[string]int{}}
}

// set changes how the disk is.
func (d *disk) set(f func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

// memberOf is the member that a path is in, "" for what is beside the node's state.
func memberOf(path string) string {
	for _, m := range memberNames {
		if strings.Contains("/"+path, "/"+m+"/") {
			return m
		}
	}
	return ""
}

// stick makes the disk do nothing for a time.
func (d *disk) stick(t time.Duration) {
	d.set(func(d *disk) {
		until := time.Now().Add(t)
		for _, m := range append([]string{""}, memberNames...) {
			if until.After(d.busy[m]) {
				d.busy[m] = until
			}
		}
	})
}

// hangs tells that the disk has not done what it was asked for, or had not a moment ago.
func (d *disk) hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, until := range d.busy {
		if time.Since(until) < time.Second {
			return true
		}
	}
	return false
}

// do carries out one operation of the store, which continues when it returns.
func (d *disk) do(op, path string, length int64) error {
	d.mu.Lock()
	d.seen[op]++
	if d.fail[op] > 0 {
		d.fail[op]--
		d.mu.Unlock()
		return syscall.EIO
	}
	switch op {
	case store.FaultCreate, store.FaultClone, store.FaultTruncate:
		if d.full > 0 && d.rng.Float64() < d.full {
			d.mu.Unlock()
			return syscall.ENOSPC
		}
	}
	var bytes int64
	var latency time.Duration
	switch op {
	case store.FaultRead:
		if d.hit >= 1 && (d.cold == nil || !d.cold(path)) { // the page cache has it, no matter who asks
			d.mu.Unlock()
			return nil
		}
		bytes, latency = length, d.speed.read
	case store.FaultWrite, store.FaultSums, store.FaultDiscard:
		if op != store.FaultWrite {
			length = oneBlock
		}
		d.dirty[path] += length // into the page cache
		held := d.held
		if d.cold == nil || !d.cold(path) {
			held = 0
		}
		d.mu.Unlock()
		if held > 0 {
			time.Sleep(held)
		}
		return nil
	case store.FaultSync, store.FaultSumsSync:
		bytes, latency = d.dirty[path], d.speed.flush
		delete(d.dirty, path)
	case store.FaultWriteback:
		bytes, latency = min(length, d.dirty[path]), d.speed.flush
		d.dirty[path] -= bytes
	case store.FaultIntent, store.FaultMark, store.FaultProbe:
		bytes, latency = length, d.speed.flush
	default: // what is done to a folder
		latency = d.speed.flush
	}
	now := time.Now()
	m := memberOf(path)
	at := d.busy[m]
	if at.Before(now) {
		at = now
	}
	at = at.Add(time.Duration(float64(bytes) / d.speed.bandwidth * float64(time.Second)))
	d.busy[m] = at
	at = at.Add(latency/2 + time.Duration(d.rng.Int64N(int64(latency))))
	d.account(op, now, at)
	d.mu.Unlock()
	time.Sleep(at.Sub(now))
	return nil
}

// account counts a request that is at the disk from now until the time end. mu is held.
func (d *disk) account(op string, now, end time.Time) {
	from := now
	if d.last.After(now) {
		from = d.last
	}
	if end.After(from) {
		d.work.Busy += end.Sub(from)
		d.last = end
	}
	took := end.Sub(now)
	d.work.All += took
	if op == store.FaultRead {
		d.work.Reads++
		d.work.Reading += took
	}
}

// counters are what the kernel would have counted so far.
func (d *disk) counters() (work.Disk, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.work
	if ahead := time.Until(d.last); ahead > 0 { // of this time nothing has passed yet
		w.Busy -= ahead
	}
	return w, nil
}

// cached says whether the page cache has what is read.
func (d *disk) cached(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return (d.cold == nil || !d.cold(path)) && d.rng.Float64() < d.hit
}

// coldLUN is the files of one LUN.
func coldLUN(id string) func(string) bool {
	return func(path string) bool { return strings.Contains(path, id) }
}
