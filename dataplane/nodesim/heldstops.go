package nodesim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Orderly stops while commands are held in the machine: what they wait for does not come any more
// once the node stops, so the stop itself has to end them.

// holding is a way to have node i hold commands. What end undoes is done again when the node has
// stopped.
type holding struct {
	name  string
	begin func(w *world, rng *rand.Rand, i int) (end func())
}

func nothing() {}

var holdings = []holding{
	{"link cut", func(w *world, _ *rand.Rand, _ int) func() {
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], 1)
		return func() { w.net.cutBoth(nodeAddr[0], nodeAddr[1], -1) }
	}},
	{"link cut one way", func(w *world, rng *rand.Rand, i int) func() {
		from := rng.IntN(2)
		w.net.cut(nodeAddr[from], nodeAddr[1-from], 1)
		return func() { w.net.cut(nodeAddr[from], nodeAddr[1-from], -1) }
	}},
	{"kill", func(w *world, _ *rand.Rand, i int) func() { w.kill(1 - i); return nothing }},
	{"the peer's disk stuck", func(w *world, rng *rand.Rand, i int) func() { // a peer that answers heartbeats, and no write
		w.nodes[1-i].disk.stick(time.Second + time.Duration(rng.IntN(4000))*time.Millisecond)
		return nothing
	}},
	{"slow reads, then the link cut", func(w *world, rng *rand.Rand, i int) func() { // reads that end when the lease is over
		slowReads(w, i, 1500*time.Millisecond)
		w.hold(rng, 300*time.Millisecond, 800*time.Millisecond)
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], 1)
		return func() {
			usualReads(w, i)
			w.net.cutBoth(nodeAddr[0], nodeAddr[1], -1)
		}
	}},
	{"disk stuck", func(w *world, rng *rand.Rand, i int) func() {
		w.nodes[i].disk.stick(time.Second + time.Duration(rng.IntN(4000))*time.Millisecond)
		return nothing
	}},
}

// slowReads has all reads of a node miss its page cache and take so long; usualReads ends it.
func slowReads(w *world, i int, d time.Duration) {
	w.nodes[i].disk.set(func(disk *disk) { disk.hit, disk.speed.read = 0, d })
}

func usualReads(w *world, i int) {
	w.nodes[i].disk.set(func(disk *disk) { disk.hit, disk.speed = 0.7, usualSpeed })
}

// waits are the reasons to wait that these histories are to meet, as branches of theirs.
var waits = []string{pair.WaitsDecision, pair.WaitsMirror, pair.WaitsFlush, pair.WaitsOwner, pair.WaitsStore, pair.WaitsAnswer, pair.WaitsEntry}

func stoppedFor(what string) string { return "a stop while commands wait for " + what }

// waiting is what commands wait for at a node, as it says itself.
func (w *world) waiting(i int) []string {
	if l := w.nodes[i].running(); l != nil {
		return slices.Sorted(maps.Keys(l.n.Waiting()))
	}
	return nil
}

// playHeldStops stops nodes in an orderly way while commands are held: the stop ends within its
// bound, and so do the commands, at the other node or at the next life of this one.
func playHeldStops(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 1, workers: 3, think: 20 * time.Millisecond, fencers: 2, half: true}) {
		return
	}
	for range 3 {
		w.pause(rng, 100*time.Millisecond, time.Second)
		i := rng.IntN(2)
		h := &holdings[rng.IntN(len(holdings))]
		away := rng.IntN(3) > 0 // else the exclusion takes its course, and the stop may meet any moment of it
		w.trace("HOLD: %s, node %s, arbiter away: %v", h.name, name(i), away)
		w.count(h.name)
		if away {
			w.count("arbiter away")
			w.record.setAway(true)
		}
		end := h.begin(w, rng, i)
		w.pause(rng, 0, 2500*time.Millisecond)
		held := w.waiting(i)
		w.trace("stop of node %s while commands wait for %q", name(i), held)
		if w.stopAndWait(i) {
			w.count("orderly restart")
			for _, what := range held {
				w.rare(stoppedFor(what))
			}
		}
		end()
		w.record.setAway(false)
		if !w.awaitSync() {
			return
		}
	}
	w.setQuiet()
	time.Sleep(time.Second)
}
