package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Supervisors (pair.Machine.PeerEnded): what starts a node's processes reaps them too, and reports
// to the partner which have ended. A report may be late, or repeated long after the node's next
// process has become a member. A supervisor that ends with its process reports nothing.

const supervisedName = "killed under a supervisor"

// supervised histories are a quarter.
func (w *world) supervised() bool {
	return w.cfg.Seed%4 == 3 && len(w.cfg.With) == 0 || slices.Contains(w.cfg.With, supervisedName)
}

// testimony is what a node's supervisor knows.
type testimony struct {
	ended   []pair.Incarnation
	reaping int64 // the last process is reaped then: the next one is not started before
	life    int   // counts supervisors
}

// dies is the end of a process, as its supervisor sees it.
func (h *host) dies(inc pair.Incarnation, power bool) {
	w, t := h.w, &h.testimony
	if !w.supervised() || slices.ContainsFunc(w.ghosts, func(g *ghost) bool { return g.m == h.m }) {
		return // it runs on elsewhere, where its supervisor is, too
	}
	if power || w.chance(0.15) { // the whole container
		t.life++
		t.ended, t.reaping = nil, 0
		return
	}
	took := w.between(100*us, 10*ms)
	if w.chance(0.1) { // a thread of it waits for the disk
		took = w.between(10*ms, 2*s)
	}
	t.reaping = w.now + took
	life := t.life
	w.after(took, func() {
		if t.life == life {
			w.trace("node %v: its supervisor has reaped %x", h.id, inc.Nonce)
			t.ended = append(t.ended, inc)
			h.testify(life, len(t.ended) == 1)
		}
	})
}

// testify tells the partner all that has ended, now, and again and again.
func (h *host) testify(life int, again bool) {
	w, t := h.w, &h.testimony
	if t.life != life {
		return
	}
	late := w.between(20*us, 2*ms)
	if w.chance(0.2) {
		late = w.even(10*ms, 3*s)
	}
	said := slices.Clone(t.ended)
	w.after(late, func() {
		peer := w.nodes[h.id.Peer()]
		if w.net.cut[h.id] {
			return
		}
		peer.when(peer.life, func() {
			if h.m != nil && h.m.Serving(h.clock()) {
				w.mark(markOldTestimony)
			}
			peer.m.PeerEnded(peer.clock(), said)
		})
	})
	if again {
		w.after(w.even(50*ms, s), func() { h.testify(life, true) })
	}
}
