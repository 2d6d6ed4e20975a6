package node

import (
	"cmp"
	"iter"
	"os"
	"sync"

	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/work"
	"github.com/gemel-storage/gemel/internal/cpulimit"
)

// workMeter averages what this node does, whichever node asks for it.
type workMeter struct {
	mu    sync.Mutex
	meter work.Meter
	cpus  float64
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
	w.meter.Look(now, n.cfg.Outside.CPU(), countsOf(units))
	return w.meter.Report(w.cpus, scrub != nil)
}

func countsOf(units map[pair.LUNID]*unitEntry) iter.Seq2[string, *count.LUN] {
	return func(yield func(string, *count.LUN) bool) {
		for _, e := range units {
			if !yield(e.lun.UUID, e.counts) {
				return
			}
		}
	}
}
