// Package sim runs the real pair state machines of two nodes under a seeded scheduler, with a simulated network,
// clocks, disks, arbiter and hosts, and judges what the hosts saw. One seed is one history, replayed exactly.
package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/target/pair"
)

// Config of a run.
type Config struct {
	Seed    uint64
	Length  time.Duration // faults and load; then everything heals
	Clients int
	Blocks  int // per LUN
	LUNs    int
	Trace   bool
}

// Result of a run.
type Result struct {
	Seed       uint64
	Events     int
	Operations int            // of hosts, answered
	Faults     map[string]int // injected, by kind
	Stats      pair.Stats     // of all lives of both nodes
	Err        error          // the first violation
	Trace      []string
}

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)
	s  = int64(time.Second)
)

type event struct {
	at  int64
	seq uint64
	do  func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any     { o := *q; x := o[len(o)-1]; *q = o[:len(o)-1]; return x }

// world is everything there is.
type world struct {
	cfg     Config
	rnd     *rand.Rand
	now     int64 // true time; nodes see their own clocks
	seq     uint64
	q       queue
	nodes   [2]*host
	net     network
	arb     arbiterSim
	clients []*client
	history history
	res     Result
	healed  bool
	luns    []pair.LUNID
	stopped bool
}

func (w *world) after(d int64, f func()) {
	w.seq++
	heap.Push(&w.q, event{w.now + d, w.seq, f})
}

// between draws a duration; most are near lo, some near hi.
func (w *world) between(lo, hi int64) int64 {
	x := w.rnd.Float64()
	return lo + int64(x*x*x*float64(hi-lo))
}

func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

func (w *world) trace(format string, args ...any) {
	if w.cfg.Trace {
		w.res.Trace = append(w.res.Trace, fmt.Sprintf("%10.3fms ", float64(w.now)/1e6)+fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(format string, args ...any) {
	if w.res.Err == nil {
		w.res.Err = fmt.Errorf("seed %d at %.3fms: %s", w.cfg.Seed, float64(w.now)/1e6, fmt.Sprintf(format, args...))
		w.trace("VIOLATION %s", w.res.Err)
	}
	w.stopped = true
}

// Run plays one history.
func Run(cfg Config) Result {
	if cfg.Length == 0 {
		cfg.Length = 8 * time.Second
	}
	if cfg.Clients == 0 {
		cfg.Clients = 4
	}
	if cfg.Blocks == 0 {
		cfg.Blocks = 6
	}
	if cfg.LUNs == 0 {
		cfg.LUNs = 2
	}
	w := &world{cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x67656d656c))}
	w.res.Seed, w.res.Faults = cfg.Seed, map[string]int{}
	for i := range cfg.LUNs {
		w.luns = append(w.luns, pair.LUNID{byte(i + 1)})
	}
	w.net.w, w.arb.w = w, w
	for i := range w.nodes {
		w.nodes[i] = newHost(w, pair.Node(i))
	}
	for _, h := range w.nodes {
		h := h
		w.after(w.between(0, 300*ms), h.boot)
	}
	w.net.connectLater()
	for i := range cfg.Clients {
		c := &client{w: w, id: i, path: w.rnd.IntN(2)}
		w.clients = append(w.clients, c)
		w.after(w.between(ms, 400*ms), c.next)
	}
	w.planFaults()
	w.after(int64(cfg.Length), w.heal)
	w.loop(int64(cfg.Length) + 60*s)
	if w.res.Err == nil {
		w.finish()
	}
	for _, h := range w.nodes {
		h.addStats()
	}
	return w.res
}

func (w *world) loop(limit int64) {
	for len(w.q) > 0 && !w.stopped {
		e := heap.Pop(&w.q).(event)
		if e.at > limit {
			return
		}
		w.now = e.at
		w.res.Events++
		e.do()
		w.check()
	}
}

// check holds at every step: never two nodes that may serve one LUN (R1, R3, R10).
func (w *world) check() {
	a, b := w.nodes[0], w.nodes[1]
	if a.m == nil || b.m == nil {
		return
	}
	sa, sb := a.m.Serving(a.clock()), b.m.Serving(b.clock())
	if !sa || !sb || a.frozen > w.now || b.frozen > w.now {
		// A frozen node executes nothing; what it does when it thaws is judged then.
		return
	}
	for _, l := range w.luns {
		oa, _ := a.m.Owner(l)
		ob, _ := b.m.Owner(l)
		va, vb := a.m.View(a.clock()), b.m.View(b.clock())
		if oa == pair.A && ob == pair.B && (va.Phase == pair.Alone || vb.Phase == pair.Alone || !a.m.Quiesced(l) && !b.m.Quiesced(l)) {
			w.fail("two owners of LUN %d: a is %v at epoch %d, b is %v at epoch %d", l[0], va.Phase, va.Record.Epoch, vb.Phase, vb.Record.Epoch)
		}
	}
}

// heal ends all faults; hosts finish what they are at.
func (w *world) heal() {
	w.trace("HEAL")
	w.healed = true
	w.net.heal()
	w.arb.down = false
	for _, h := range w.nodes {
		h.frozen = 0
		if h.m == nil {
			h.boot()
		}
	}
	w.after(20*s, w.mustBeWell)
}

// mustBeWell is the liveness claim: 20 s after the last fault both nodes are in sync and every host is done.
func (w *world) mustBeWell() {
	for _, h := range w.nodes {
		v := h.m.View(h.clock())
		if v.Phase != pair.Paired || !v.Agreed {
			w.fail("node %v is %v (%s) 20 s after the last fault; record %+v", h.id, v.Phase, v.Reason, w.arb.rec)
		}
	}
	for _, h := range w.nodes {
		if h.moving > 0 {
			w.fail("%d transfers of node %v have no outcome 20 s after the last fault", h.moving, h.id)
		}
	}
	for _, c := range w.clients {
		if c.busy {
			w.fail("client %d still waits 20 s after the last fault: %s", c.id, c.describe())
		}
	}
	w.stopped = true
}

// finish judges the whole: equal copies, then a history that one disk could have given.
func (w *world) finish() {
	if d := w.nodes[0].disk.diff(w.nodes[1].disk); d != "" {
		w.fail("the copies differ: %s", d)
		return
	}
	if err := w.history.linearizable(); err != nil {
		w.fail("%v", err)
	}
}

// String prints a trace.
func (r *Result) String() string { return strings.Join(r.Trace, "\n") }
