package node

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descGroupCuts  = desc("group_cuts_total", "Attempts to cut a group snapshot at which this node was asked, by what came of them; void: this node was not told, and has asked the log.", "result")
	descGroupHolds = desc("group_holds", "Groups of which this node holds members at present, for a cut.")
	descGroupHeld  = desc("group_held_seconds", "How long the changes of the members of a group snapshot were held until it was cut, the last time and at most.", "of")
)

// groupTally counts what came of cuts in this life.
type groupTally struct {
	done, refused, void atomic.Uint64
	last, worst         atomic.Int64 // ns
}

func (t *groupTally) cut(held time.Duration) {
	t.done.Add(1)
	t.last.Store(int64(held))
	for was := t.worst.Load(); int64(held) > was && !t.worst.CompareAndSwap(was, int64(held)); was = t.worst.Load() {
	}
}

func (n *Node) collectGroups(ch chan<- prometheus.Metric) {
	t := &n.groups.tally
	n.groups.mu.Lock()
	holds := len(n.groups.holds)
	n.groups.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(descGroupHolds, prometheus.GaugeValue, float64(holds))
	for result, v := range map[string]*atomic.Uint64{"cut": &t.done, "refused": &t.refused, "void": &t.void} {
		ch <- prometheus.MustNewConstMetric(descGroupCuts, prometheus.CounterValue, float64(v.Load()), result)
	}
	for of, v := range map[string]*atomic.Int64{"last": &t.last, "worst": &t.worst} {
		ch <- prometheus.MustNewConstMetric(descGroupHeld, prometheus.GaugeValue, float64(v.Load())/float64(time.Second), of)
	}
}
