package work

import "github.com/gemel-storage/gemel/dataplane/balance"

// Share is the work of a LUN, as a share of one node's capacity.
type Share struct {
	Fast, Slow float64
	Cold       float64 // seconds of work to read again what the other node's cache lacks, estimated
}

// Limits of what a node's model may be scaled by. Few commands at a time cost up to six times as
// much each as many at a time (docs/benchmarks.md, CPU for each operation), and a slow processor
// more.
const (
	scaleMin = 0.25
	scaleMax = 16
	// scaleFrom is the modelled work, in CPUs, from which on what is measured says something about
	// it: below, the process spends its time on other things.
	scaleFrom = 0.005
)

// ColdRate is how fast a node is taken to read what its cache lacks, in bytes per second. coldMax
// is how much of what a LUN has read in a slow window is taken to have been in the cache.
const (
	ColdRate = 1 << 30
	coldMax  = 4 << 30
)

// Pair combines the reports of both nodes: by how much each node is used, with the work of LUNs
// counted where their owners are now, and the work of each LUN. owner is 0 or 1; a LUN that owner
// does not know counts nowhere.
func Pair(r [2]Report, owner func(lun string) (node int, ok bool)) (use [2]float64, luns map[string]Share) {
	luns = map[string]Share{}
	smaller := min(r[0].CPUs, r[1].CPUs)
	if smaller <= 0 {
		return use, luns
	}
	for n := range r {
		scale := r[n].scale(&r[1-n])
		movable := 0.0
		for id, l := range r[n].LUNs {
			s := luns[id]
			s.Fast += l.Fast * scale / smaller
			s.Slow += l.Slow * scale / smaller
			s.Cold += min(l.Read*balance.SlowWindow.Seconds(), coldMax) / ColdRate
			luns[id] = s
			movable += l.Slow * scale
		}
		use[n] = max(r[n].CPU-movable, 0) / r[n].CPUs
	}
	for id, s := range luns {
		if n, ok := owner(id); ok {
			use[n] += s.Slow * smaller / r[n].CPUs
		}
	}
	return use, luns
}

// scale is how much more CPU time a node has used than its model says. Beside what it owned it has
// mirrored what the other node owned.
func (r *Report) scale(peer *Report) float64 {
	model := r.Full + peer.Mirror
	if model < scaleFrom {
		return 1
	}
	return min(max(r.CPU/model, scaleMin), scaleMax)
}
