package nodesim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// shape is what kind of history a seed plays.
type shape struct {
	name   string
	weight int
	play   func(w *world, rng *rand.Rand)
}

var shapes = []shape{
	{"faults", 5, playFaults},
	{"fencing", 2, playFencing},
	{"slow reads", 1, playSlowReads},
	{"slow pings", 1, playSlowPings},
	{"busy disks", 1, playBusyDisks},
	{"disk fails", 1, playFailures},
	{"stops", 1, playStops},
	{"held stops", 1, playHeldStops},
	{"strays", 1, playStrays},
	{"full disks", 1, playFullDisks},
}

func (w *world) draw(rng *rand.Rand, want string) *shape {
	total := 0
	for _, s := range shapes {
		total += s.weight
	}
	k := rng.IntN(total)
	for i := range shapes {
		s := &shapes[i]
		if k -= s.weight; want == s.name || want == "" && k < 0 {
			return s
		}
	}
	panic("no such shape: " + want)
}

func playFaults(w *world, rng *rand.Rand) {
	s := setup{users: 1 + rng.IntN(2), workers: 2, think: 60 * time.Millisecond, fencers: 2 * rng.IntN(2), half: true, control: rng.IntN(2) == 0}
	s.crowd = s.control
	if !w.populate(s) {
		return
	}
	w.trouble(rng, 3+rng.IntN(4))
	w.setQuiet()
	if w.awaitSync() {
		time.Sleep(2 * time.Second)
	}
}

// playFencing has several hosts that fence, reset and abort each other, while nothing fails: every
// command has to be answered soon, and no node may leave.
func playFencing(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 1, workers: 1, think: 50 * time.Millisecond, fencers: 2 + rng.IntN(2), half: true, strict: true, bound: fenceBound}) {
		return
	}
	for _, f := range w.fencers { // half-sent writes are so for a while
		d := time.Duration(rng.IntN(5)) * time.Millisecond
		for i := range nodeAddr {
			w.net.set(f.addr, nodeAddr[i], func(c *condition) { c.delay += d })
		}
	}
	for _, m := range w.nodes {
		s := speed{read: time.Duration(1+rng.IntN(20)) * time.Millisecond, flush: time.Duration(1+rng.IntN(10)) * time.Millisecond, bandwidth: 100e6}
		m.disk.set(func(d *disk) { d.speed = s })
	}
	own := w.rand(14)
	w.busy.Go(func() { w.caller.unmaps(own) })
	w.setQuiet()
	w.calm(8 * time.Second)
}

// playFailures has disks that fail, one at a time: the node leaves, is started again, copied to,
// and serves.
func playFailures(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 1, workers: 2, think: 40 * time.Millisecond, control: true, crowd: true}) {
		return
	}
	f := &faults[slices.IndexFunc(faults, func(f fault) bool { return f.name == "disk fails" })]
	for range 2 {
		w.pause(rng, 100*time.Millisecond, time.Second)
		w.count(f.name)
		f.do(w, rng, rng.IntN(2))
		if !w.awaitSync() {
			return
		}
	}
	w.setQuiet()
	time.Sleep(time.Second)
}

// playFullDisks has LUNs and snapshots made while there is no room for some of their files, at
// either node or at both. The caller gets that error, and no node leaves for it.
func playFullDisks(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 1, workers: 1, think: 40 * time.Millisecond, control: true, crowd: true}) {
		return
	}
	kills := rng.IntN(2) == 0 // then files of objects that are being made may be missing, which only a resync can end
	for range 4 {
		w.pause(rng, 100*time.Millisecond, 500*time.Millisecond)
		w.count("no room for files")
		w.roomless.Store(true)
		first, both := rng.IntN(2), rng.IntN(2) == 0
		for i := range w.nodes {
			if i == first || both {
				w.nodes[i].disk.set(func(d *disk) { d.full = 0.3 + 0.7*rng.Float64() })
			}
		}
		w.hold(rng, 500*time.Millisecond, 4*time.Second)
		if kills {
			w.kill(first)
			w.hold(rng, 2*backOff, 4*time.Second)
		}
		for i := range w.nodes {
			w.nodes[i].disk.set(func(d *disk) { d.full = 0 })
		}
	}
	w.setQuiet()
	if kills && !w.awaitSync() {
		return
	}
	time.Sleep(time.Second)
	if !kills && w.met("a node left") {
		w.fail("a node left, and nothing but room for files was lacking")
	}
}

// playStops stops nodes in an orderly way, also while they are cut off from everything: a stop ends
// within its bound.
func playStops(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 1, workers: 2, think: 30 * time.Millisecond}) {
		return
	}
	for range 3 {
		w.pause(rng, 100*time.Millisecond, time.Second)
		i := rng.IntN(2)
		cut := rng.IntN(2) == 0
		if cut {
			w.count("machine cut off")
			w.alone(i, 1)
			w.record.setAway(true)
			w.pause(rng, 0, 300*time.Millisecond)
		}
		if w.stopAndWait(i) {
			w.count("orderly restart")
		}
		if cut {
			w.alone(i, -1)
			w.record.setAway(false)
		}
		if !w.awaitSync() {
			return
		}
	}
	w.setQuiet()
	time.Sleep(time.Second)
}

// playStrays has hosts whose way to a node is cut until they have given it up: what they had sent
// arrives when they have continued elsewhere, slowly.
func playStrays(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 1 + rng.IntN(2), workers: 10, think: 1500 * time.Millisecond}) {
		return
	}
	for range 4 {
		w.pause(rng, 200*time.Millisecond, 900*time.Millisecond)
		u := w.users[rng.IntN(len(w.users))]
		i := rng.IntN(2)
		if rng.IntN(4) > 0 {
			i = u.id % 2 // the owner's, at first
		}
		w.count("host cut from a node")
		delay := time.Duration(rng.IntN(400)) * time.Millisecond
		w.net.set(u.addr, nodeAddr[i], func(c *condition) { c.cuts++; c.delay = delay; c.rate = 40e3 })
		w.hold(rng, 2*time.Second, 3500*time.Millisecond)
		if rng.IntN(2) == 0 { // and the node that hosts have gone to is gone
			if w.kill(1 - i) {
				w.count("kill")
			}
			w.hold(rng, 600*time.Millisecond, 1200*time.Millisecond)
		}
		w.net.set(u.addr, nodeAddr[i], func(c *condition) { c.cuts--; c.rate = 10e3 + 100e3*rng.Float64() })
		w.hold(rng, 500*time.Millisecond, 1500*time.Millisecond)
		w.net.set(u.addr, nodeAddr[i], func(c *condition) { c.delay, c.rate = usualDelay, 0 })
		if !w.awaitSync() {
			return
		}
	}
	w.setQuiet()
	time.Sleep(time.Second)
}

// calm lets time go by in which no node may leave and nothing may be overdue.
func (w *world) calm(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok, saw := w.inSync(); !ok {
			w.fail("a node does not serve although nothing fails: %s", saw)
			return
		}
		if list := w.overdue(); len(list) > 0 {
			w.fail("%s", strings.Join(list, "; "))
			return
		}
	}
}

// within fails what took longer than it may.
func (w *world) within(kind string, limit time.Duration) {
	w.mu.Lock()
	took := w.longest[kind]
	w.mu.Unlock()
	if took > limit {
		w.fail("%s took %v, the limit is %v", kind, took, limit)
	}
}

// hotLimit is how long a command may take that has nothing to wait for, while others wait for slow
// disks.
const hotLimit = 250 * time.Millisecond

// playSlowReads has one LUN all of whose reads miss the page cache and whose writes wait, on both
// nodes, beside one that is in the page cache. Hosts use both over one session, to the owner and to
// the other node: what is slow must hold nothing else up.
func playSlowReads(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 1, workers: 2, think: 100 * time.Millisecond, bound: 20 * time.Second, mixers: true}) {
		return
	}
	k := rng.IntN(2)
	slow := speed{read: time.Duration(500+rng.IntN(500)) * time.Millisecond, flush: time.Millisecond, bandwidth: 400e6}
	for _, m := range w.nodes {
		m.disk.set(func(d *disk) {
			d.cold, d.hit, d.speed, d.held = coldLUN(w.luns[k].id), 1, slow, time.Duration(300+rng.IntN(300))*time.Millisecond
		})
	}
	for _, f := range w.mixers {
		for j := range 4 {
			own := w.rand(uint64(400 + 10*f.id + j))
			w.busy.Go(func() { f.mix(own, w.luns[k], w.luns[1-k], j) })
		}
	}
	w.setQuiet()
	w.calm(6 * time.Second)
	hot := w.luns[1-k].name
	for _, kind := range []string{"read ", "write ", "READ ", "WRITE "} {
		w.within(kind+hot, hotLimit)
	}
}

func playSlowPings(w *world, rng *rand.Rand) {
	d, users := time.Duration(300+rng.IntN(700))*time.Millisecond, 1
	if rng.IntN(2) == 0 { // several hosts write to a LUN, so each has to show that it is there
		d, users = time.Duration(50+rng.IntN(100))*time.Millisecond, 2
	}
	for k := range 2 * users {
		for i := range nodeAddr {
			w.net.setBoth(userAddr(k), nodeAddr[i], func(c *condition) { c.delay = d })
		}
	}
	if !w.populate(setup{users: users, workers: 1, think: 20 * time.Millisecond, ping: 20 * time.Second, bound: 20 * time.Second}) {
		return
	}
	w.setQuiet()
	w.calm(15 * time.Second)
}

func playBusyDisks(w *world, rng *rand.Rand) {
	if !w.populate(setup{users: 2, workers: 3, think: 10 * time.Millisecond, bound: 30 * time.Second}) {
		return
	}
	for _, m := range w.nodes {
		s := speed{read: time.Duration(1+rng.IntN(50)) * time.Millisecond, flush: time.Duration(5+rng.IntN(900)) * time.Millisecond, bandwidth: 1e6 + rng.Float64()*4e6}
		m.disk.set(func(d *disk) { d.speed = s })
	}
	w.setQuiet()
	w.calm(10 * time.Second)
}
