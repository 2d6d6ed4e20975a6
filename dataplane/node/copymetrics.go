package node

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descCopyBytes = desc("copy_bytes", "Bytes of the snapshots and clones that this node copies at present (total), how much of that is copied (done), and how much of it since a write or a read needed it (saved).", "kind")
	descCopies    = desc("copies_total", "Snapshots and clones that were copied here, by what came of it.", "result")
)

// copyTally counts what came of copies in this life.
type copyTally struct{ complete, failed atomic.Uint64 }

func (n *Node) collectCopies(ch chan<- prometheus.Metric) {
	var total, done, saved int64
	n.copies.mu.Lock()
	for _, x := range n.copies.all {
		st := x.c.State()
		total, done, saved = total+st.Total, done+st.Done, saved+st.Saved
	}
	n.copies.mu.Unlock()
	for kind, v := range map[string]int64{"total": total, "done": done, "saved": saved} {
		ch <- prometheus.MustNewConstMetric(descCopyBytes, prometheus.GaugeValue, float64(v), kind)
	}
	for result, v := range map[string]*atomic.Uint64{"complete": &n.copies.tally.complete, "failed": &n.copies.tally.failed} {
		ch <- prometheus.MustNewConstMetric(descCopies, prometheus.CounterValue, float64(v.Load()), result)
	}
}
