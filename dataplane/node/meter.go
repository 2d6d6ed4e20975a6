package node

import (
	"cmp"
	"iter"
	"os"
	"sync"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/work"
	"github.com/gemel-storage/gemel/internal/blockstat"
	"github.com/gemel-storage/gemel/internal/cpulimit"
)

// workMeter averages what this node does, whichever node asks for it.
type workMeter struct {
	mu    sync.Mutex
	meter work.Meter
	cpus  float64
	disks map[string]func() (work.Disk, error) // under each backing volume; nil: not looked for yet
}

// work brings the averages up to date, and reports them.
func (n *Node) work(now int64, units map[pair.LUNID]*unitEntry) work.Report {
	scrub, _ := n.shares()
	w := &n.meter
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cpus == 0 {
		w.cpus = cmp.Or(n.cfg.CPUs, cpulimit.CPUs(os.DirFS("/")))
	}
	if w.disks == nil {
		w.disks = n.findDisks()
	}
	w.meter.Look(now, n.cfg.Outside.CPU(), sourcesOf(units), readDisks(w.disks))
	return w.meter.Report(w.cpus, scrub != nil)
}

func sourcesOf(units map[pair.LUNID]*unitEntry) iter.Seq2[string, work.Source] {
	return func(yield func(string, work.Source) bool) {
		for _, e := range units {
			if !yield(e.lun.UUID, work.Source{Counts: e.counts, Volume: meta.VolumeName(e.lun.Volume)}) {
				return
			}
		}
	}
}

// findDisks finds the disk under each backing volume, once: another one needs a restart.
func (n *Node) findDisks() map[string]func() (work.Disk, error) {
	disks := map[string]func() (work.Disk, error){}
	for _, v := range n.store.Volumes() {
		read, err := n.cfg.Outside.Disk(v.Dir())
		if err != nil {
			n.log.Info("the kernel counts nothing of a disk of its own under a backing volume: of the reads there only their CPU time counts as work",
				"volume", v.Name(), "dir", v.Dir(), "err", err)
			continue
		}
		disks[v.Name()] = read
	}
	return disks
}

// readDisks leaves out a disk that cannot be read at present.
func readDisks(disks map[string]func() (work.Disk, error)) map[string]work.Disk {
	out := make(map[string]work.Disk, len(disks))
	for volume, read := range disks {
		if d, err := read(); err == nil {
			out[volume] = d
		}
	}
	return out
}

// realDisk is the block device under a directory.
func realDisk(dir string) (func() (work.Disk, error), error) {
	d, err := blockstat.Of(os.DirFS("/"), dir)
	if err != nil {
		return nil, err
	}
	return func() (work.Disk, error) {
		c, err := d.Read()
		return work.Disk{Busy: c.Busy, Reads: c.Reads, Reading: c.Reading, All: c.All}, err
	}, nil
}
