// Package count counts what hosts do with each LUN: exactly, from any number of goroutines, and at
// a cost that a command does not notice (BenchmarkAdd). What rates and averages are made of is read
// from it now and then.
package count

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Kind of a command.
type Kind uint8

// Kinds of commands. Other is what neither reads nor writes data: flushes, UNMAP, what maps
// extents.
const (
	Read Kind = iota
	Write
	Other
	Kinds
)

func (k Kind) String() string { return [...]string{"read", "write", "other"}[k] }

// Way by which a command reached the node that executed it.
type Way uint8

// A command of a host that logged in here was executed here (Own) or forwarded to the peer, which
// owns the LUN (Forwarded); Remote is a command that the peer forwarded to this node. The sum of
// Own and Forwarded over both nodes counts each command of a host once, and so does the sum of Own
// and Remote.
const (
	Own Way = iota
	Forwarded
	Remote
	Ways
)

func (w Way) String() string { return [...]string{"own", "forwarded", "remote"}[w] }

// Class of the size of a command.
type Class uint8

// Classes: up to 4 KiB, up to 64 KiB, and more.
const (
	Small Class = iota
	Medium
	Large
	Classes
)

func (c Class) String() string { return [...]string{"small", "medium", "large"}[c] }

// ClassOf a command of so many bytes.
func ClassOf(n int64) Class {
	switch {
	case n <= 4<<10:
		return Small
	case n <= 64<<10:
		return Medium
	}
	return Large
}

// Buckets of the latency histogram: bucket i has commands that took up to Bound(i), the last one
// all that took longer.
const (
	Buckets  = 20
	firstLog = 5 // 32 µs
)

// Bound is the upper limit of a bucket: 32 µs, doubled for each one after the first, to 8 s. The
// last bucket has none.
func Bound(i int) time.Duration { return time.Microsecond << (firstLog + i) }

func bucket(d time.Duration) int {
	us := max(int64(d+time.Microsecond-1)/int64(time.Microsecond), 1)
	return min(max(bits.Len64(uint64(us-1))-firstLog, 0), Buckets-1)
}

// LUN has the counters of one LUN at one node. The zero value is ready.
type LUN struct {
	cells [Kinds][Ways]cell
	disk  atomic.Uint64 // ns
}

type cell struct {
	took  [Classes][Buckets]atomic.Uint64
	bytes atomic.Uint64
	nanos atomic.Uint64
}

// Add counts one command that has ended: n bytes, within d of its arrival.
func (l *LUN) Add(k Kind, w Way, n int64, d time.Duration) {
	c := &l.cells[k][w]
	c.took[ClassOf(n)][bucket(d)].Add(1)
	if n > 0 {
		c.bytes.Add(uint64(n))
	}
	if d > 0 {
		c.nanos.Add(uint64(d))
	}
}

// AddDisk counts d for which one read was at the local disk, or may have been: the page cache could
// not answer it at once. Time in a queue before is not part of it.
func (l *LUN) AddDisk(d time.Duration) {
	if d > 0 {
		l.disk.Add(uint64(d))
	}
}

// Disk is the sum of what AddDisk was given. It grows by more than a second in a second where
// several reads are at the disk at once.
func (l *LUN) Disk() time.Duration { return time.Duration(l.disk.Load()) }

// Totals are the counters at one instant. Commands that end while they are read may be in some of
// them and not yet in others.
type Totals [Kinds][Ways]Cell

// Cell counts the commands of one kind that came one way.
type Cell struct {
	Ops   [Classes]uint64
	Bytes uint64
	Took  time.Duration // all latencies
	Hist  [Buckets]uint64
}

// Count of all sizes.
func (c *Cell) Count() (n uint64) {
	for _, x := range c.Ops {
		n += x
	}
	return n
}

// Read the counters.
func (l *LUN) Read() (t Totals) {
	for k := range l.cells {
		for w := range l.cells[k] {
			from, to := &l.cells[k][w], &t[k][w]
			for c := range from.took {
				for b := range from.took[c] {
					x := from.took[c][b].Load()
					to.Ops[c] += x
					to.Hist[b] += x
				}
			}
			to.Bytes, to.Took = from.bytes.Load(), time.Duration(from.nanos.Load())
		}
	}
	return t
}

// Sum of commands.
type Sum struct{ Ops, Bytes uint64 }

// Sums of the commands of each kind.
type Sums [Kinds]Sum

// Executed sums the commands that this node has executed as the owner of the LUN, whichever node
// they came in at.
func (l *LUN) Executed() (s Sums) {
	for k := range l.cells {
		for _, w := range []Way{Own, Remote} {
			c := &l.cells[k][w]
			for i := range c.took {
				for b := range c.took[i] {
					s[k].Ops += c.took[i][b].Load()
				}
			}
			s[k].Bytes += c.bytes.Load()
		}
	}
	return s
}

// Stamp changes with every command that takes time. It is cheap: a reader of many LUNs passes over
// those that have done nothing.
func (l *LUN) Stamp() (n uint64) {
	for k := range l.cells {
		for w := range l.cells[k] {
			n += l.cells[k][w].nanos.Load()
		}
	}
	return n
}

// Sub takes away what was counted before.
func (t *Totals) Sub(before *Totals) {
	t.each(before, func(x *uint64, y uint64) { *x -= y }, -1)
}

// Plus adds the counters of another LUN, or of another node.
func (t *Totals) Plus(o *Totals) {
	t.each(o, func(x *uint64, y uint64) { *x += y }, 1)
}

func (t *Totals) each(o *Totals, f func(x *uint64, y uint64), sign time.Duration) {
	for k := range t {
		for w := range t[k] {
			x, y := &t[k][w], &o[k][w]
			for c := range x.Ops {
				f(&x.Ops[c], y.Ops[c])
			}
			for b := range x.Hist {
				f(&x.Hist[b], y.Hist[b])
			}
			f(&x.Bytes, y.Bytes)
			x.Took += sign * y.Took
		}
	}
}
