package sim

import "github.com/gemel-storage/gemel/dataplane/pair"

// administrator does what docs/operations.md says under "When a node or the record is lost", and
// nothing else: stop the one node, name the other with force, start the first again. Before the
// faults have ended only a lost record calls for it.
type administrator struct {
	since   int64   // help has been needed since then; 0: it is not
	stopped *host   // this node is kept stopped
	at      int64   // since then
	forced  [2]bool // the node has been forced this time
	ever    [2]bool // or before: what it asked the arbiter for may land late, and twice
	acts    int     // how often one had to act
}

const (
	lookEvery = 200 * ms
	lostAfter = 1500 * ms // before an administrator believes that the record is lost
	goneAfter = 5 * s     // before an administrator believes that a node will not come back without help
	tryFor    = 12 * s    // before one starts over: a disk may not answer for as long
	maxActs   = 6         // of a history; the arbiter forgets three times at most
)

// administer looks at the pair now and then.
func (w *world) administer() {
	w.after(lookEvery, w.administer)
	d := &w.admin
	if d.stopped != nil {
		w.force(w.nodes[d.stopped.id.Peer()])
		return
	}
	patience := goneAfter
	if w.arb.lost {
		patience = lostAfter
	}
	switch {
	case !w.helpless():
		d.since = 0
	case d.since == 0:
		d.since = w.now
	case w.now-d.since > patience:
		survivor := w.survivor()
		if survivor == nil {
			return
		}
		if d.acts++; d.acts > maxActs {
			return // it does not help: that is for the claim of liveness to say
		}
		d.stopped, d.at, d.since = w.nodes[survivor.id.Peer()], w.now, 0
		w.trace("ADMINISTRATOR stops node %v", d.stopped.id)
		d.stopped.kill(false)
		d.stopped.held = true
		w.deadline = max(w.deadline, w.now+w.wellWithin())
	}
}

// helpless tells whether the pair waits for a person: neither node serves, or one has fenced itself
// because the record is lost.
func (w *world) helpless() bool {
	if w.arb.down || w.arb.flight[0]+w.arb.flight[1] > 0 || !w.healed && !w.arb.lost {
		return false
	}
	forceable, fenced, serves := false, false, false
	for _, h := range w.nodes {
		if h.m == nil || h.frozenNow() {
			return false
		}
		v := h.m.View(h.clock())
		if v.Leaving || v.Over != "" {
			return false // its process ends, and is started again
		}
		forceable = forceable || v.ForceEpoch != 0
		fenced = fenced || v.ForceEpoch != 0 && v.Phase == pair.Fenced
		serves = serves || v.Phase == pair.Alone || v.Phase == pair.Paired
	}
	return forceable && (!serves || fenced && w.arb.lost)
}

// survivor is the node with the higher epoch, or the one that was a member last; never one whose
// disk has failed.
func (w *world) survivor() (best *host) {
	member := func(h *host) bool {
		r := h.disk.record
		return r != nil && r.Member(h.id) != nil && r.Member(h.id).Store == h.disk.id
	}
	for _, h := range w.nodes {
		switch {
		case h.disk.suspect():
		case best == nil, h.disk.epoch > best.disk.epoch, h.disk.epoch == best.disk.epoch && member(h) && !member(best):
			best = h
		}
	}
	return best
}

// force has the survivor take over, then starts the other.
func (w *world) force(h *host) {
	d := &w.admin
	if w.now-d.at > tryFor {
		w.release()
		return
	}
	if h.m == nil || h.frozenNow() {
		return
	}
	switch v := h.m.View(h.clock()); {
	case v.Phase == pair.Alone && (d.forced[h.id] || !w.arb.lost): // it has, or it needed no help
		w.release()
	case v.ForceEpoch != 0 && h.disk.suspect():
		w.release()
	case v.ForceEpoch != 0:
		h.when(h.life, func() {
			err := h.m.Force(h.clock(), v.ForceEpoch)
			w.trace("ADMINISTRATOR forces node %v at epoch %d: %v", h.id, v.ForceEpoch, err)
			d.forced[h.id] = d.forced[h.id] || err == nil
			d.ever[h.id] = d.ever[h.id] || err == nil
		})
	case v.Phase == pair.Alone || v.Phase == pair.Paired:
		w.trace("ADMINISTRATOR restarts node %v", h.id) // it has not looked at the record yet
		h.kill(false)
		w.after(50*ms, h.boot)
	}
}

func (w *world) release() {
	d := &w.admin
	h := d.stopped
	d.stopped, d.forced = nil, [2]bool{}
	h.held = false
	w.trace("ADMINISTRATOR starts node %v", h.id)
	w.deadline = max(w.deadline, w.now+w.wellWithin())
	h.boot()
}

// forces tells whether a record is an administrator's: of a new generation. It is believed whatever
// was there before.
func (a *arbiterSim) forces(next *pair.Record) bool {
	w := a.w
	if next.Both() || !w.admin.ever[next.Chair()] || next.Generation <= a.rec.Generation {
		return false
	}
	for _, r := range a.past {
		if r.Both() && next.Generation <= r.Generation {
			w.fail("R2: the forced record %+v is of a generation that was there before: %+v", *next, r)
		}
	}
	if h := w.nodes[next.Chair()]; !h.disk.life.Lost || !h.disk.life.LostAll {
		w.fail("R8: node %v takes over by force and has not put on record that its hosts must get MEDIUM ERROR", h.id)
	}
	// One that is alone may not know it yet: the forced one waits until it does.
	if other := w.nodes[next.Chair().Peer()]; other.m != nil && other.m.Serving(other.clock()) && other.phase != pair.Alone {
		w.fail("R3: node %v is forced while node %v serves", next.Chair(), other.id)
	}
	a.lost = false
	w.mark(markForced)
	return true
}
