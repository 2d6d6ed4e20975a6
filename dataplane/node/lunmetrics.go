package node

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gemel-storage/gemel/dataplane/count"
)

// lunSeries bounds how many LUNs have metrics of their own. A LUN has them from its first command
// on until it is deleted; if as many have them already, its commands are in the series of
// otherLUNs.
const lunSeries = 200

// otherLUNs is the label lun of everything that has no series of its own.
const otherLUNs = "others"

// labelStriped of a LUN is the name of the striped volume that it is a part of. The operator gives
// LUNs this label.
const labelStriped = "gemel.storage/striped"

var (
	descLUNOps   = desc("lun_operations_total", "Commands of hosts for a LUN that this node has executed (own), handed to the owner (forwarded), or executed for the other node (remote), by size up to 4 KiB (small), up to 64 KiB (medium) and more (large).", "lun", "kind", "way", "size")
	descLUNBytes = desc("lun_bytes_total", "Bytes that these commands have read or written.", "lun", "kind", "way")
	descLUNInfo  = desc("lun_info", "Always 1: the name of each LUN that has series of its own, and the volume that it belongs to, which is the LUN itself unless it is a part of a striped volume.", "lun", "name", "volume")
	descLUNTook  = desc("lun_duration_seconds", "Time from the arrival of a host's command at this node to its status.", "lun", "kind")
)

// collectLUNs sends the counters of LUNs.
func (n *Node) collectLUNs(ch chan<- prometheus.Metric) {
	t := n.md.tables.Load()
	entries := make([]*unitEntry, 0, len(t.units))
	for _, e := range t.units {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(x, y *unitEntry) int { return cmp.Compare(x.lun.UUID, y.lun.UUID) })
	named := 0
	for _, e := range entries {
		if e.series.Load() {
			named++
		}
	}
	var rest count.Totals
	others := false
	for _, e := range entries {
		x := e.counts.Read()
		if x == (count.Totals{}) {
			continue
		}
		if !e.series.Load() && named < lunSeries {
			e.series.Store(true)
			named++
		}
		if e.series.Load() {
			sendLUN(ch, e.lun.UUID, &x)
			ch <- prometheus.MustNewConstMetric(descLUNInfo, prometheus.GaugeValue, 1, e.lun.UUID, e.lun.Name, cmp.Or(e.lun.Labels[labelStriped], e.lun.Name))
		} else {
			rest.Plus(&x)
			others = true
		}
	}
	if others {
		sendLUN(ch, otherLUNs, &rest)
	}
}

func sendLUN(ch chan<- prometheus.Metric, lun string, t *count.Totals) {
	for k := range count.Kinds {
		for w := range count.Ways {
			c := &t[k][w]
			if c.Count() == 0 {
				continue
			}
			for s := range count.Classes {
				if c.Ops[s] > 0 {
					ch <- prometheus.MustNewConstMetric(descLUNOps, prometheus.CounterValue, float64(c.Ops[s]), lun, k.String(), w.String(), s.String())
				}
			}
			if k != count.Other {
				ch <- prometheus.MustNewConstMetric(descLUNBytes, prometheus.CounterValue, float64(c.Bytes), lun, k.String(), w.String())
			}
		}
		own, fwd := &t[k][count.Own], &t[k][count.Forwarded]
		all := own.Count() + fwd.Count()
		if all == 0 {
			continue
		}
		buckets, sum := map[float64]uint64{}, uint64(0)
		for b := range count.Buckets - 1 {
			sum += own.Hist[b] + fwd.Hist[b]
			if b%2 == 1 || b == count.Buckets-2 { // every second one: from 64 µs on, four times as long each
				buckets[count.Bound(b).Seconds()] = sum
			}
		}
		ch <- prometheus.MustNewConstHistogram(descLUNTook, all, (own.Took + fwd.Took).Seconds(), buckets, lun, k.String())
	}
}
