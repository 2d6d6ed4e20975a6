// Package work turns what is counted into work: time of CPUs and of disks that commands demand, in
// seconds per second of a node. It is not the sum of latencies, which grows with congestion, resync
// and slow disks. It is pure: no clock, socket, disk, goroutine or randomness.
//
// What a command costs is a model: so much for each command and each byte, as measured with
// `make bench` (docs/benchmarks.md). Its proportions matter, not its size: each node's model is
// scaled to the CPU time that its process has really used.
//
// A write is carried out on both nodes, no matter which one owns the LUN. So only a part of its
// work goes along when the LUN moves: what the owner has to do beyond what the other node does.
//
// Of the time of a disk only the reads go along: see Disk.
package work

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/count"
)

// cost of commands, in seconds of CPU for each command and each byte.
type cost struct{ command, byte float64 }

func (c cost) of(x count.Sum) float64 { return c.command*float64(x.Ops) + c.byte*float64(x.Bytes) }

// What commands cost: at the owner, and at the other node.
var (
	atOwner = [count.Kinds]cost{count.Read: {9e-6, 0.5e-9}, count.Write: {57e-6, 1.9e-9}, count.Other: {10e-6, 0}}
	atPeer  = [count.Kinds]cost{count.Write: {41e-6, 1.6e-9}}
)

// LUN is the work of one LUN at one node, which executed it as the owner.
type LUN struct {
	Fast   float64 `json:"fast"`   // that would go along if the LUN moved, over the fast window
	Slow   float64 `json:"slow"`   // the same over the slow window
	Full   float64 `json:"full"`   // of the owner, over the slow window
	Mirror float64 `json:"mirror"` // that it caused at the other node, over the slow window
	Read   float64 `json:"read"`   // bytes per second, over the slow window

	// Time for which the disk was busy with its reads, in seconds per second, over both windows.
	DiskFast float64 `json:"diskFast,omitempty"`
	DiskSlow float64 `json:"diskSlow,omitempty"`
}

// Report is what a node knows of its work. Work of LUNs is by the model; CPU is measured.
type Report struct {
	CPUs       float64        `json:"cpus"`       // that the node may use
	CPU        float64        `json:"cpu"`        // seconds per second that its process used, over the slow window
	LUNs       map[string]LUN `json:"luns"`       // those with the most work
	Full       float64        `json:"full"`       // of all LUNs
	Mirror     float64        `json:"mirror"`     // of all LUNs
	Background bool           `json:"background"` // a scrub is under way: CPU says little about commands

	// Disks has what is known of the disk under each backing volume, by name; those that the kernel
	// counts nothing of are missing, and a release before sends none.
	Disks map[string]DiskUse `json:"disks,omitempty"`
}

// MaxLUNs is how many LUNs a report has. Those with less work are a part of what cannot move.
const MaxLUNs = 256

// average over a window that reaches back to the first look at most.
type average struct{ sum float64 }

func (a *average) add(rate, keep float64) { a.sum = a.sum*keep + rate*(1-keep) }

// Meter averages what one node has counted over the windows of package balance. It is not safe for
// concurrent use.
type Meter struct {
	begun  bool
	at     int64
	cpu    time.Duration
	used   average
	weight [2]average // of the time that has been seen, for each window: how much of it is no guess
	luns   map[string]*memory
	disks  map[string]*diskMemory
}

// Source is what a LUN has counted, and its backing volume.
type Source struct {
	Counts *count.LUN
	Volume string
}

type memory struct {
	of    *count.LUN
	stamp uint64
	was   count.Sums
	avg   [2]average
	full  average
	mirr  average
	read  average

	waited time.Duration // at the disk, at the last look
	disk   [2]average
}

// Look brings the averages up to date: now in ns, cpu what the process has used so far, the
// counters of every LUN, and those of the disk under each backing volume as far as they are known.
// What was counted before the first look is not known to be recent.
func (m *Meter) Look(now int64, cpu time.Duration, luns iter.Seq2[string, Source], disks map[string]Disk) {
	dt := time.Duration(now - m.at).Seconds()
	if m.begun && dt <= 0 {
		return
	}
	var keep [2]float64
	if m.begun {
		keep = [2]float64{math.Exp(-dt / balance.FastWindow.Seconds()), math.Exp(-dt / balance.SlowWindow.Seconds())}
		m.used.add(max((cpu-m.cpu).Seconds(), 0)/dt, keep[1])
		for i := range m.weight {
			m.weight[i].add(1, keep[i])
		}
	}
	next, waits := make(map[string]*memory, len(m.luns)), map[string]time.Duration{}
	var readers []reader
	for id, s := range luns {
		c, l := s.Counts, m.luns[id]
		if l == nil || l.of != c {
			l = &memory{of: c}
			if !m.begun {
				l.stamp, l.was, l.waited = c.Stamp(), c.Executed(), c.Disk()
			}
		}
		next[id] = l
		if !m.begun {
			continue
		}
		l.look(dt, keep)
		if is := c.Disk(); is != l.waited || l.disk[1].sum > 0 { // few LUNs use a disk
			waits[s.Volume] += is - l.waited
			readers = append(readers, reader{l, s.Volume, is})
		}
	}
	shares := m.lookAtDisks(dt, keep, disks, waits)
	for _, r := range readers {
		r.l.lookAtDisk(dt, keep, shares[r.volume], r.waited)
	}
	m.begun, m.at, m.cpu, m.luns = true, now, cpu, next
}

func (l *memory) look(dt float64, keep [2]float64) {
	var full, mirror, bytes float64
	if s := l.of.Stamp(); s != l.stamp {
		is := l.of.Executed()
		for k := range is {
			d := count.Sum{Ops: is[k].Ops - l.was[k].Ops, Bytes: is[k].Bytes - l.was[k].Bytes}
			full += atOwner[k].of(d)
			mirror += atPeer[k].of(d)
		}
		bytes = float64(is[count.Read].Bytes - l.was[count.Read].Bytes)
		l.stamp, l.was = s, is
	}
	for i := range l.avg {
		l.avg[i].add((full-mirror)/dt, keep[i])
	}
	l.full.add(full/dt, keep[1])
	l.mirr.add(mirror/dt, keep[1])
	l.read.add(bytes/dt, keep[1])
}

// least is the work below which a LUN is not listed.
const least = 1e-6

// Report of the last look.
func (m *Meter) Report(cpus float64, background bool) Report {
	r := Report{CPUs: cpus, CPU: m.over(m.used, 1), Background: background, LUNs: map[string]LUN{}, Disks: m.reportDisks()}
	var names []string
	for id, l := range m.luns {
		x := LUN{Fast: m.over(l.avg[0], 0), Slow: m.over(l.avg[1], 1), Full: m.over(l.full, 1), Mirror: m.over(l.mirr, 1), Read: m.over(l.read, 1),
			DiskFast: m.over(l.disk[0], 0), DiskSlow: m.over(l.disk[1], 1)}
		r.Full += x.Full
		r.Mirror += x.Mirror
		if max(x.Fast, x.Slow, x.DiskFast, x.DiskSlow) > least {
			r.LUNs[id] = x
			names = append(names, id)
		}
	}
	if len(names) > MaxLUNs {
		slices.SortFunc(names, func(x, y string) int {
			p, q := r.LUNs[x], r.LUNs[y]
			return cmp.Or(cmp.Compare(q.most(), p.most()), cmp.Compare(x, y))
		})
		for _, id := range names[MaxLUNs:] {
			delete(r.LUNs, id)
		}
	}
	return r
}

// most of a resource that a LUN takes: a disk, or a CPU.
func (l *LUN) most() float64 { return max(l.Slow, l.DiskSlow) }

// over is an average of the time that has been seen.
func (m *Meter) over(a average, window int) float64 {
	if w := m.weight[window].sum; w > 0 {
		return a.sum / w
	}
	return 0
}
