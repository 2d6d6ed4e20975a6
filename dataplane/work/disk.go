package work

import "time"

// Disk is what the kernel has counted so far of the disk under a backing volume.
//
// The time for which it was busy is measured, and cannot exceed the time that has passed, however
// long requests wait. It is apportioned: first the part of reads, by the kernel's time of reads to
// that of all requests; then that of each LUN, by how long its reads were at the disk. Reads that
// share a queue are served in proportion to how many of each LUN are in it, which is what the sum
// of their times says. Only that part moves along with a LUN: the other node writes all the same.
type Disk struct {
	Busy    time.Duration // for which it had a request at least
	Reads   uint64        // that have ended
	Reading time.Duration // of all reads, added up
	All     time.Duration // of all requests, added up
}

// DiskUse is how a disk was used, over the slow window.
type DiskUse struct {
	Busy float64 `json:"busy"` // share of the time
	Wait float64 `json:"wait"` // seconds that a read took at it on average
}

// ahead is how many requests the kernel may have at a disk for one read that waits: it reads ahead
// of a host that reads in order. What the disk reads beyond that is for others.
const ahead = 4

type diskMemory struct {
	was            Disk
	seen           average // how much of the averages is no guess
	busy           average
	reads, reading average // per second
}

// lookAtDisks brings the averages of disks up to date. waits is how long reads were at each disk
// since the last look, as LUNs have counted. It returns for how long the disk was busy for each
// second of that. A disk that is not known any more is forgotten.
func (m *Meter) lookAtDisks(dt float64, keep [2]float64, disks map[string]Disk, waits map[string]time.Duration) (shares map[string]float64) {
	next := make(map[string]*diskMemory, len(disks))
	shares = make(map[string]float64, len(disks))
	for volume, is := range disks {
		d := m.disks[volume]
		if d == nil || is.Reads < d.was.Reads || is.Busy < d.was.Busy || is.All < d.was.All { // it is another one
			next[volume] = &diskMemory{was: is}
			continue
		}
		next[volume] = d
		busy := min((is.Busy - d.was.Busy).Seconds(), dt)
		reading := max(is.Reading-d.was.Reading, 0).Seconds()
		shares[volume] = share(busy, reading, (is.All - d.was.All).Seconds(), waits[volume].Seconds())
		d.seen.add(1, keep[1])
		d.busy.add(busy/dt, keep[1])
		d.reads.add(float64(is.Reads-d.was.Reads)/dt, keep[1])
		d.reading.add(reading/dt, keep[1])
		d.was = is
	}
	m.disks = next
	return shares
}

// share is for how long a disk was busy for each second of the reads of LUNs: busy is for how long
// it was, reading and all are the time of its requests, waited that of the reads of LUNs. What is
// apportioned is never more than busy.
func share(busy, reading, all, waited float64) float64 {
	if waited <= 0 || all <= 0 {
		return 0
	}
	return busy * min(reading/all, 1) / max(waited, reading/ahead)
}

// reader is a LUN that has been read past the page cache, and for how long so far.
type reader struct {
	l      *memory
	volume string
	waited time.Duration
}

func (l *memory) lookAtDisk(dt float64, keep [2]float64, share float64, is time.Duration) {
	for i := range l.disk {
		l.disk[i].add((is-l.waited).Seconds()*share/dt, keep[i])
	}
	l.waited = is
}

func (m *Meter) reportDisks() map[string]DiskUse {
	out := make(map[string]DiskUse, len(m.disks))
	for volume, d := range m.disks {
		if d.seen.sum <= 0 {
			continue
		}
		u := DiskUse{Busy: d.busy.sum / d.seen.sum}
		if d.reads.sum > 0 {
			u.Wait = d.reading.sum / d.reads.sum
		}
		out[volume] = u
	}
	return out
}
