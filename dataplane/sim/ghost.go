package sim

import "github.com/gemel-storage/gemel/dataplane/pair"

// ghost is a process that continues after another process has its store (R2b): the disk was moved
// into another machine, or the folder copied beside it, and a new process has begun there. It hears
// nothing of its partner any more. What it may read from its page cache it serves for as long as it
// takes itself for a member; if it is alone it still looks at the record.
type ghost struct {
	w     *world
	m     *pair.Machine
	h     host // its clock
	asked bool
}

// move takes the disk of a node away from a process that continues. Within the machine the copy has
// another lock; in another machine the lock may look like the same one, and what was not flushed is
// gone. Now and then the partner restarts at that moment.
func (w *world) move(h *host) bool {
	peer := w.nodes[h.id.Peer()]
	if h.m == nil || h.frozenNow() || h.sick || h.disk.suspect() || peer.disk.suspect() || peer.m == nil || !h.m.Serving(h.clock()) || w.arb.lost {
		return false
	}
	g := &ghost{w: w, m: h.m, h: *h}
	w.ghosts = append(w.ghosts, g)
	another := w.chance(0.5)
	w.trace("node %v: its disk goes to another machine (%v), its process continues", h.id, another)
	h.kill(another)
	h.harmed = w.now // a copy need not have all that the process has taken since
	if !another {
		h.place++
	}
	if w.chance(0.3) {
		peer.kill(false)
		w.after(w.even(5*ms, 100*ms), peer.boot)
	}
	g.tick()
	w.after(callTimeout, func() {
		if !g.asked { // what it had asked before is not answered any more
			g.m.ArbiterDone(g.h.clock(), pair.Unknown, nil, "", "no answer")
		}
	})
	w.after(w.even(5*ms, 300*ms), h.boot)
	return true
}

// moveAndSetBack takes the disk of a lone member away, and sets the arbiter back to the record of
// the former process while the next life of that node waits until that process has read the record.
// The arbiter does not answer that node for a while then.
func (w *world) moveAndSetBack(lone, _ *host) bool {
	a := &w.arb
	if len(a.past) == 0 || !w.move(lone) {
		return false
	}
	led := a.past[len(a.past)-1].Epoch
	var look func()
	look = func() {
		switch {
		case w.healed, a.lost, a.rec.Epoch > led+1:
			return
		case a.rec.Epoch == led || lone.m == nil || lone.phase != pair.Alone || lone.disk.epoch != a.rec.Epoch || a.flight[0]+a.flight[1] > 0:
			w.after(20*ms, look)
			return
		}
		w.after(w.even(0, 1900*ms), func() {
			if a.lost || a.rec.Epoch != led+1 || a.flight[0]+a.flight[1] > 0 {
				return
			}
			a.rec = a.past[len(a.past)-2]
			a.version++
			a.lost, a.down = true, true
			w.trace("arbiter: set back to epoch %d while node %v waits, and does not answer", a.rec.Epoch, lone.id)
			w.mark(markRolledBack)
			w.after(w.even(500*ms, 3*s), func() { a.down = false })
		})
	}
	look()
	return true
}

// moveAsking ends a node, and has its return end with a request for both members that lands, and is
// refused when it is repeated. Before the source can read the record its disk goes to another
// machine. That may be after the last fault.
func (w *world) moveAsking() bool {
	if w.arb.unheard {
		return false
	}
	w.arb.unheard = true
	return w.crash(w.any(), false)
}

// tick is the ghost's life: it looks at the record if it is alone, and nothing that it asks for is
// done.
func (g *ghost) tick() {
	w := g.w
	g.m.Tick(g.h.clock())
	for g.m.Pending() {
		for _, x := range g.m.Take(nil) {
			switch x.Kind {
			case pair.ActArbiterGet:
				g.asked = true
				w.after(5*ms, func() {
					out, rec, version := w.arb.act(&g.h, &x, w.now)
					g.m.ArbiterDone(g.h.clock(), out, &rec, version, "")
				})
			case pair.ActArbiterCAS:
				g.asked = true
				w.after(callTimeout, func() { g.m.ArbiterDone(g.h.clock(), pair.Unknown, nil, "", "no answer") })
			}
		}
	}
	if p := g.m.View(g.h.clock()).Phase; p == pair.Alone || p == pair.Paired && g.m.Serving(g.h.clock()) {
		w.after(20*ms, g.tick)
	}
}

// checkGhosts: no node serves under a younger record while a process of an older one does.
func (w *world) checkGhosts() {
	for _, g := range w.ghosts {
		now := g.h.clock()
		if !g.m.Serving(now) {
			continue
		}
		w.mark(markGhostServes)
		was := g.m.View(now)
		for _, h := range w.nodes {
			if h.m == nil || h.frozenNow() || !h.m.Serving(h.clock()) {
				continue
			}
			if v := h.m.View(h.clock()); v.Record.Epoch > was.Record.Epoch {
				w.fail("R2b: node %v serves under epoch %d while a process whose store has gone serves under %d", h.id, v.Record.Epoch, was.Record.Epoch)
			}
		}
	}
}
