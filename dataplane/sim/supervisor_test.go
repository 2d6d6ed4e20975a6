package sim

import "testing"

// Short lives double the wait, up to a bound; a long one starts over.
func TestSupervisorBacksOff(t *testing.T) {
	var r supervisor
	now, last := int64(0), int64(0)
	for range 12 {
		r.started(now)
		now += 100 * ms
		d := r.ended(now)
		if d < last || d > runDelayMax || last > 0 && d < min(2*last, runDelayMax) {
			t.Fatalf("%d ms after %d ms", d/ms, last/ms)
		}
		last = d
		now += d
	}
	r.started(now)
	if d := r.ended(now + runForget + ms); last != runDelayMax || d != runDelayMin {
		t.Errorf("%d ms, then %d ms after a long life", last/ms, d/ms)
	}
}

// A process that has ended without a stop starts when it is due, whatever else would start it.
func TestEndedProcessWaitsUntilItIsDue(t *testing.T) {
	w := still()
	h := w.nodes[0]
	h.boot()
	w.until(0, 1, func() {})
	h.m.StoreFailed(h.clock(), "the disk")
	h.run.due = 0
	h.drain()
	h.observe()
	if !h.run.ending {
		t.Fatalf("the process goes on: %+v", h.m.View(h.clock()))
	}
	for h.m != nil {
		e := w.q.pop()
		w.now = e.at
		e.do()
	}
	due := h.run.due
	if h.boot(); h.m != nil || due <= w.now {
		t.Fatalf("started at %d, due at %d", w.now, due)
	}
	for h.m == nil {
		e := w.q.pop()
		w.now = e.at
		e.do()
	}
	if w.now < due || w.res.Marks[markOver] != 1 {
		t.Errorf("started at %d, due at %d; %d ends", w.now, due, w.res.Marks[markOver])
	}
}

// A node that does not serve in the end counts, unless docs/operations.md names a person: here,
// both disks have failed.
func TestUnservedNodesAreCounted(t *testing.T) {
	w := still()
	if w.unserved() != 0 {
		t.Error("the faults have not ended")
	}
	w.healed = true
	if n := w.unserved(); n != 2 {
		t.Errorf("%d nodes that do not run, not 2", n)
	}
	for _, h := range w.nodes {
		h.disk.untrusted = true
	}
	if n := w.unserved(); n != 0 {
		t.Errorf("%d, and both disks have failed", n)
	}
}
