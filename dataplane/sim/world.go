// Package sim runs the real pair state machines of two nodes under a seeded scheduler, with a
// simulated network, clocks, disks, arbiter and hosts, and judges what the hosts saw. One seed is
// one history, replayed exactly.
package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Config of a run. What is zero the seed draws.
type Config struct {
	Seed    uint64
	Length  time.Duration // faults and load; then everything heals
	Clients int
	Blocks  int // per LUN
	LUNs    int
	Trace   bool
	Plain   bool     // disks keep no checksums, and damage nothing
	With    []string // kinds of faults (FaultNames) that are injected besides those that the seed draws
}

// Result of a run.
type Result struct {
	Seed       uint64
	Events     int
	Operations int            // of hosts, answered
	Faults     map[string]int // injected, by kind, and what hosts were answered
	Marks      Marks          // rare situations that were met
	Stats      pair.Stats     // of all lives of both nodes
	Digest     uint64         // of the times of all events: differs if anything happened otherwise, or in another order
	Unserved   int            // nodes that did not serve at the end although no action of a person was due
	Err        error          // the first violation
	Trace      []string
}

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)
	s  = int64(time.Second)
)

// Bounds of a history. One that is thinner proves too little and fails; one that is longer runs in
// circles.
const (
	minEvents     = 1000
	minOperations = 100
	minFaults     = 1
	maxEvents     = 500_000
)

// world is everything there is.
type world struct {
	cfg       Config
	shape     shape
	rnd       *rand.Rand
	rot       *rand.Rand // of damage and of checksums, likewise
	side      *rand.Rand // of what must not change everything else that a seed draws
	lazy      *rand.Rand // of when snapshots are deleted, likewise
	now       int64      // true time; nodes see their own clocks
	seq       uint64
	q         queue
	nodes     [2]*host
	ghosts    []*ghost
	net       network
	arb       arbiterSim
	clients   []*client
	history   history
	truth     truth
	res       Result
	injected  int
	healed    bool
	quiet     bool // healed and well: hosts read everything once more and end
	luns      []pair.LUNID
	deadline  int64 // liveness is claimed until then
	admin     administrator
	parted    int64               // since then, true time, the arbiter was set back and two may be alone (parted.go)
	flips     int                 // blocks changed behind a node's back
	damagedAt int64               // the last one under load
	away      []func()            // put lost files back
	rotten    map[[2]int]int64    // groups of LUNs that have been damaged at either node
	notes     uint64              // of callers, so far
	calling   bool                // callers have begun
	lookedAt  map[[2]int]looked   // regions that were copied
	ids       int                 // stores made
	instants  map[uint64]instant  // of snapshots, by Born
	contents  map[uint64][]uint64 // of those that were committed
	cuts      [][]member          // that the log has, as nodes applied them
	attempts  uint64              // of the group
	atMark    func()              // what follows the next mark of a snapshot
	atRefusal func(*host)         // what follows when a forwarded write finds no space at its partner
	lateLooks int64               // until then answers to looks at copies are late
	pool      []*pair.Op
	stopped   bool
}

func (w *world) after(d int64, f func()) {
	w.seq++
	w.q.push(event{w.now + d, w.seq, f})
}

// between draws a duration; most are near lo, some near hi.
func (w *world) between(lo, hi int64) int64 {
	x := w.rnd.Float64()
	return lo + int64(x*x*x*float64(hi-lo))
}

func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

// even draws a duration, all equally likely.
func (w *world) even(lo, hi int64) int64 { return lo + w.rnd.Int64N(hi-lo+1) }

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
	w := &world{cfg: cfg}
	w.seed()
	w.res.Seed, w.res.Faults = cfg.Seed, map[string]int{}
	w.play()
	w.res.Unserved = w.unserved()
	for _, h := range w.nodes {
		h.addStats()
	}
	return w.res
}

func (w *world) seed() {
	w.rnd = rand.New(rand.NewPCG(w.cfg.Seed, 0x67656d656c))
	w.side = rand.New(rand.NewPCG(w.cfg.Seed, 0x73696465))
	w.rot = rand.New(rand.NewPCG(w.cfg.Seed, 0x726f74))
}

// rotting draws from what damage draws from for as long as f runs.
func (w *world) rotting(f func()) {
	w.rnd, w.rot = w.rot, w.rnd
	defer func() { w.rnd, w.rot = w.rot, w.rnd }()
	f()
}

// aside draws from the side for as long as f runs.
func (w *world) aside(f func()) {
	w.rnd, w.side = w.side, w.rnd
	defer func() { w.rnd, w.side = w.side, w.rnd }()
	f()
}

func (w *world) play() {
	defer func() {
		if p := recover(); p != nil {
			w.fail("panic: %v\n%s", p, debug.Stack())
		}
	}()
	w.setUp()
	w.loop()
	w.finish()
}

func (w *world) setUp() {
	w.shape = w.draw()
	w.trace("%+v", w.shape)
	for i := range w.shape.luns {
		w.luns = append(w.luns, pair.LUNID{byte(i + 1)})
	}
	w.history.init(w.shape.luns, w.shape.blocks)
	w.truth.init(w.shape.luns, w.shape.blocks)
	w.net.w, w.arb.w = w, w
	for i := range w.nodes {
		w.nodes[i] = newHost(w, pair.Node(i))
	}
	for _, h := range w.nodes {
		w.after(w.between(0, 300*ms), h.boot)
	}
	w.net.connectLater()
	for i := range w.shape.clients {
		c := &client{w: w, id: i, path: w.rnd.IntN(2), name: fmt.Sprintf("host%d", i)}
		w.clients = append(w.clients, c)
		w.after(w.between(ms, 400*ms), c.next)
	}
	if w.remote() { // at first half of the hosts, then one by one
		for range (len(w.clients) + 1) / 2 {
			w.goFar()
		}
	}
	w.planFaults()
	w.planSnapshots()
	w.planScrubs()
	w.planDamage()
	w.planRot()
	w.planLostFiles()
	w.after(lookEvery, w.administer)
	w.after(w.shape.length, w.heal)
}

func (w *world) loop() {
	for len(w.q) > 0 && !w.stopped {
		e := w.q.pop()
		w.now = e.at
		w.res.Events++
		w.res.Digest = (w.res.Digest ^ uint64(w.now)) * 0x100000001b3
		e.do()
		if w.res.Events > maxEvents {
			w.fail("%d events and no end", w.res.Events)
		}
	}
}

// heal ends all faults; hosts finish what they are at.
func (w *world) heal() {
	w.trace("HEAL")
	w.healed = true
	for _, c := range w.clients {
		c.comeNear()
	}
	w.net.heal()
	for _, c := range w.clients {
		for node := range c.cutOff {
			c.reconnect(node)
		}
	}
	w.arb.heal()
	for _, back := range w.away {
		back()
	}
	for _, h := range w.nodes {
		h.heal()
	}
	w.deadline = w.now + w.wellWithin()
	w.after(100*ms, w.untilWell)
}

// wellWithin is the bound of the liveness claim. Where each entry of the log takes seconds, those
// that wait for each other take longer: here no entries are made together.
func (w *world) wellWithin() int64 {
	if w.sluggish() {
		return 60 * s
	}
	return 20 * s
}

// untilWell is the liveness claim: within that time of the last fault, or of what an administrator
// had to do, both nodes are in sync, a scrub of both copies finds them alike, and every host has
// its answers.
func (w *world) untilWell() {
	why := w.unwell()
	switch {
	case why == "" && !w.quiet && w.scrubbed(): // one that is under way may have skipped what it waited for
		w.quiet = true // hosts read each block once more, over both paths
		w.scrubAll()
	case why == "" && w.idle() && w.scrubbed() && w.flipped() && w.now < w.deadline:
		w.scrubAll() // a LUN may have moved from under the last one
	case why == "" && w.idle() && w.scrubbed():
		w.stopped = true
		return
	case w.now >= w.deadline && w.excused():
		w.stopped = true
		return
	case w.now >= w.deadline:
		if why == "" {
			why = w.waiting()
		}
		w.fail("%d s after the last fault: %s; record %+v", w.wellWithin()/s, why, w.arb.rec)
		return
	}
	w.after(50*ms, w.untilWell)
}

// excused are histories that claim no service at their end: both disks have failed, and what was on
// them comes from a backup or not at all.
func (w *world) excused() bool {
	if w.nodes[0].disk.suspect() && w.nodes[1].disk.suspect() {
		w.mark(markExcusedDisk)
		return true
	}
	return false
}

func (w *world) unwell() string {
	if w.res.Operations < minOperations || w.res.Events < minEvents {
		return "too little has happened"
	}
	for _, h := range w.nodes {
		if h.m == nil {
			return fmt.Sprintf("node %v is down", h.id)
		}
		if v := h.m.View(h.clock()); v.Phase != pair.Paired || !v.Agreed || !v.Serving {
			return fmt.Sprintf("node %v is %v (%s), agreed %v", h.id, v.Phase, v.Reason, v.Agreed)
		}
		if h.moving > 0 {
			return fmt.Sprintf("%d transfers of node %v have no outcome", h.moving, h.id)
		}
	}
	if a, b := w.nodes[0].disk.meta.Index, w.nodes[1].disk.meta.Index; a != b && w.sluggish() {
		return fmt.Sprintf("an entry is on its way: the logs end at %d on a, %d on b", a, b)
	}
	return w.unfinished()
}

// unserved counts the nodes that do not serve although docs/operations.md does not ask a person to
// act: what runs the processes has had its time, and so has the administrator.
func (w *world) unserved() (n int) {
	if !w.healed || w.excused() {
		return 0
	}
	for _, h := range w.nodes {
		if h.m == nil || !h.m.Serving(h.clock()) {
			n++
		}
	}
	return n
}

func (w *world) idle() bool { return w.waiting() == "" }

func (w *world) waiting() string {
	for _, c := range w.clients {
		if c.busy {
			return fmt.Sprintf("client %d still waits: %s", c.id, c.describe())
		}
	}
	return ""
}

// finish judges the whole: enough happened, equal copies, then a history that one disk could have
// given.
func (w *world) finish() {
	if w.res.Err != nil {
		return
	}
	if w.res.Events < minEvents || w.res.Operations < minOperations && !w.excusedMark() || w.injected < minFaults {
		w.fail("too thin: %d events, %d operations, %d faults", w.res.Events, w.res.Operations, w.injected)
		return
	}
	if err := w.copies(); err != nil {
		w.fail("%v", err)
		return
	}
	if w.parted > 0 {
		return // for a while there were two disks
	}
	for _, c := range w.clients {
		if c.busy {
			w.history.open(c)
		}
	}
	for _, h := range w.nodes {
		for slot := range h.disk.meta.Snaps {
			h.judgeSnap(slot)
		}
	}
	if w.res.Err != nil {
		return
	}
	if err := w.history.linearizable(); err != nil {
		w.fail("%v", err)
	}
}

// String prints a trace.
func (r *Result) String() string { return strings.Join(r.Trace, "\n") }
