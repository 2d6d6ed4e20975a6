package sim

import (
	"slices"
	"strconv"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// arbiterSim keeps the record. Answers can be late or lost; a write whose answer is lost may have
// landed, or may land later, or be asked twice of which the second answer is the one that is heard.
type arbiterSim struct {
	w       *world
	rec     pair.Record
	past    []pair.Record // every record of another epoch there was, oldest first
	version int
	exists  bool
	down    bool
	flaky   bool
	slow    bool
	lost    bool   // it forgot what it had answered
	flight  [2]int // writes of a node that may yet land
	unheard bool   // the next request for both members lands, and its node does not learn of that (moveAsking)
}

// callTimeout bounds one attempt, as the runtime does.
const callTimeout = s

func (a *arbiterSim) heal() {
	a.down, a.flaky, a.slow = false, false, false
}

// call asks the arbiter. A lone member that only looks (R2) draws from the side.
func (a *arbiterSim) call(h *host, x pair.Action) {
	if x.Kind == pair.ActArbiterGet && h.phase == pair.Alone && !h.resyncing {
		a.w.aside(func() { a.ask(h, x) })
		return
	}
	a.ask(h, x)
}

func (a *arbiterSim) ask(h *host, x pair.Action) {
	w, m, life := a.w, h.m, h.life
	cas := x.Kind == pair.ActArbiterCAS
	asked := w.now
	answer := func(out pair.Outcome, rec pair.Record, version string) {
		h.unanswered = 0
		h.when(life, func() { m.ArbiterDone(h.clock(), out, &rec, version, "no answer") })
	}
	unknown := func() {
		if h.unanswered == 0 {
			h.unanswered = w.now
		}
		w.after(callTimeout, func() {
			h.when(life, func() { m.ArbiterDone(h.clock(), pair.Unknown, &pair.Record{}, "", "no answer") })
		})
	}
	if a.down {
		unknown()
		return
	}
	land := func(in int64, then func(pair.Outcome, pair.Record, string)) {
		if cas {
			a.flight[h.id]++
		}
		w.after(in, func() {
			out, rec, version := a.act(h, &x, asked)
			if cas {
				a.flight[h.id]--
			}
			if then != nil {
				then(out, rec, version)
			}
		})
	}
	there, back := w.between(200*us, 8*ms), w.between(200*us, 8*ms)
	if a.slow {
		there, back = w.between(ms, 1500*ms), w.between(ms, 300*ms)
	}
	if a.unheard && cas && x.Record.Both() && h.phase == pair.Alone {
		a.unheard = false
		w.deadline = max(w.deadline, w.now+w.wellWithin())
		land(there, nil)
		land(there+back, func(out pair.Outcome, rec pair.Record, version string) { // the repetition
			answer(out, rec, version)
			w.move(h)
		})
		return
	}
	switch {
	case a.flaky && w.chance(0.4):
		if w.chance(0.5) {
			land(w.between(ms, 3*s), nil) // lands, maybe late; the answer is lost
		}
		unknown()
	case there+back > callTimeout:
		land(there, nil)
		unknown()
	case a.flaky && cas && w.chance(0.3):
		// The request was repeated below: the first lands, the answer of the second is heard.
		land(there, nil)
		land(there+back, answer)
	default:
		land(there, func(out pair.Outcome, rec pair.Record, version string) {
			w.after(back, func() { answer(out, rec, version) })
		})
	}
}

// act is the arbiter itself.
func (a *arbiterSim) act(h *host, x *pair.Action, asked int64) (pair.Outcome, pair.Record, string) {
	w := a.w
	if x.Kind == pair.ActArbiterGet {
		if !a.exists {
			return pair.Missing, pair.Record{}, ""
		}
		return pair.Got, a.copy(), a.ver()
	}
	late := w.now-asked > 500*ms
	if x.Version != a.ver() {
		if late {
			w.mark(markLateRefused)
		}
		w.mark(markConflict)
		return pair.Conflict, pair.Record{}, ""
	}
	if late {
		w.mark(markLateLanded)
	}
	if a.exists && a.rec.Epoch == x.Record.Epoch {
		w.mark(markNoOpRecord)
	}
	a.judge(x.Record, asked)
	if !a.exists || a.rec.Epoch != x.Record.Epoch {
		a.past = append(a.past, *x.Record)
	}
	a.rec = *x.Record
	a.rec.Members = slices.Clone(x.Record.Members)
	a.version++
	a.exists = true
	w.trace("arbiter: version %d epoch %d names %v (by %v)", a.version, a.rec.Epoch, names(a.rec.Members), h.id)
	return pair.Got, a.copy(), a.ver()
}

func names(ms []pair.Member) (out string) {
	for _, m := range ms {
		out += m.Node.String()
	}
	return out
}

func (a *arbiterSim) ver() string {
	if !a.exists {
		return ""
	}
	return strconv.Itoa(a.version)
}

func (a *arbiterSim) copy() pair.Record {
	r := a.rec
	r.Members = slices.Clone(a.rec.Members)
	return r
}

// forget is the loss of what was answered: an older record is back, or none. Version numbers do not
// come twice, as with a restored etcd whose revision was bumped. It happens only when both nodes
// have acted on the present epoch: a node that never heard of it cannot know that the record is an
// old one.
func (a *arbiterSim) forget() bool {
	w := a.w
	for _, h := range w.nodes {
		if h.m == nil || h.disk.epoch < a.rec.Epoch || w.res.Operations < minOperations {
			return false
		}
	}
	if len(a.past) < 2 && !w.chance(0.3) || a.flight[0]+a.flight[1] > 0 {
		return false
	}
	a.lost = true
	a.version++
	if len(a.past) < 2 || w.chance(0.3) {
		w.trace("arbiter: emptied")
		w.mark(markEmptied)
		a.exists = false
		a.rec = pair.Record{}
		return true
	}
	a.rec = a.past[w.rnd.IntN(len(a.past)-1)]
	if !a.exists { // it was emptied before
		a.rec = pair.Record{}
		return true
	}
	w.trace("arbiter: rolled back to epoch %d", a.rec.Epoch)
	w.mark(markRolledBack)
	return true
}
