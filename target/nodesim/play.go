package nodesim

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"context"
	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
)

// Config of one history.
type Config struct {
	Seed  uint64
	Dir   string    // for the nodes' stores; a filesystem in memory
	Trace io.Writer // what happens; nil: nothing
	Shape string    // in place of the one that the seed draws
}

// Result of one history.
type Result struct {
	Seed       uint64
	Shape      string
	Violations []string
	Unserved   bool // the nodes did not serve by themselves after the last fault
	Operations int
	Faults     map[string]int
	Branches   map[string]int
	Longest    map[string]time.Duration
	Fake, Real time.Duration
}

// shape is what kind of history a seed plays.
type shape struct {
	name   string
	weight int
	play   func(w *world, rng *rand.Rand)
}

// Play plays one history in a bubble of its own.
func Play(t *testing.T, cfg Config) (r Result) {
	began := time.Now()
	r.Seed = cfg.Seed
	dir, err := os.MkdirTemp(cfg.Dir, "history-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var w *world
	defer func() {
		if p := recover(); p != nil { // the bubble ended with goroutines in it
			r.Violations = append(r.Violations, fmt.Sprintf("the bubble: %v", p))
		}
		r.Real = time.Since(began)
	}()
	watch := newWatchdog(cfg.Seed)
	defer watch.stop()
	synctest.Test(t, func(*testing.T) {
		w = newWorld(cfg.Seed, dir, cfg.Trace)
		w.run(cfg.Shape)
		w.mu.Lock()
		defer w.mu.Unlock()
		r.Shape, r.Violations, r.Unserved, r.Operations = w.shape, w.violations, w.unserved, w.operations
		r.Faults, r.Branches, r.Longest, r.Fake = w.counts, w.branches, w.longest, w.now()
	})
	return r
}

// watchdog ends a history that does not come to rest: a goroutine waits for a lock whose holder waits for a disk, or runs in circles, so
// that fake time stands still.
type watchdog struct{ t *time.Timer }

// realLimit is the most that a history may take of real time.
const realLimit = 4 * time.Minute

func newWatchdog(seed uint64) *watchdog {
	return &watchdog{time.AfterFunc(realLimit, func() {
		buf := make([]byte, 4<<20)
		buf = buf[:runtime.Stack(buf, true)]
		stuck(seed, fmt.Sprintf("fake time stands still for %v: a goroutine waits for a lock whose holder waits, or runs in circles", realLimit), string(buf))
	})}
}

// stuck ends the process: a bubble has no other end while something runs in it.
func stuck(seed uint64, text, stacks string) {
	if onStuck != nil {
		onStuck(seed, text)
	}
	fmt.Fprintf(os.Stderr, "%s\nseed %d: %s\n", stacks, seed, text)
	os.Exit(2)
}

func (d *watchdog) stop() { d.t.Stop() }

// onStuck is told before the process ends.
var onStuck func(seed uint64, text string)

var shapes = []shape{
	{"faults", 5, playFaults},
	{"fencing", 2, playFencing},
	{"slow reads", 1, playSlowReads},
	{"slow pings", 1, playSlowPings},
	{"busy disks", 1, playBusyDisks},
	{"disk fails", 1, playFailures},
	{"stops", 1, playStops},
	{"strays", 1, playStrays},
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

// run is a history from beginning to end.
func (w *world) run(want string) {
	rng := w.rand(1)
	s := w.draw(rng, want)
	w.shape = s.name
	w.trace("seed %d: %s", w.seed, s.name)
	if err := w.startNodes(); err != nil {
		w.fail("%v", err)
	} else {
		s.play(w, rng)
	}
	w.finish()
}

// hostsOf is what uses the LUNs of a history.
type setup struct {
	users, workers, fencers int
	mixers                  bool
	think                   time.Duration
	ping                    time.Duration // how long an answer to a ping may take
	strict                  bool          // nothing fails
	half                    bool
	control                 bool
	bound                   time.Duration
}

// begin makes LUNs and hosts, and sets them to work.
func (w *world) populate(rng *rand.Rand, s setup) bool {
	c, err := newCaller(w)
	if err != nil {
		w.fail("%v", err)
		return false
	}
	w.caller = c
	if s.bound == 0 {
		s.bound = ioBound
	}
	own := w.rand(11)
	for i := range 2 {
		var names []string
		for k := range s.users {
			names = append(names, hostName(fmt.Sprintf("user%d", 2*k+i)))
		}
		hosts := slices.Clone(names)
		if s.mixers {
			hosts = append(hosts, hostName("fence1"), hostName("fence2"))
		}
		l, err := c.make(own, fmt.Sprintf("data%d", i), name(i), 64<<20, hosts...)
		if err != nil {
			w.fail("%v", err)
			return false
		}
		w.luns = append(w.luns, l)
		h := &history{}
		w.histories = append(w.histories, h)
		for k := range names {
			id := 2*k + i
			w.users = append(w.users, &user{w: w, id: id, addr: fmt.Sprintf("127.0.1.%d", 1+id), name: names[k], lun: l, h: h, bound: s.bound})
		}
	}
	if s.fencers > 0 {
		l, err := c.make(own, "shared", "", 64<<20)
		for k := range s.fencers {
			f := newFencer(w, k+1, l, s.half && k%2 == 0, s.strict)
			if err == nil {
				err = c.mapHost(own, l, f.name)
			}
			w.fencers = append(w.fencers, f)
		}
		if err != nil {
			w.fail("%v", err)
			return false
		}
		w.shared = l
	}
	if s.mixers {
		for k := range 2 {
			w.mixers = append(w.mixers, newFencer(w, k+1, w.luns[0], false, true))
		}
	}
	var v values
	var wg sync.WaitGroup
	opened := make([]error, len(w.users))
	for k, u := range w.users {
		wg.Go(func() { opened[k] = u.open(s.ping) })
	}
	wg.Wait()
	for k, u := range w.users {
		if opened[k] != nil {
			w.fail("%s: %v", u.name, opened[k])
			return false
		}
		w.lunBlock = int64(u.dev.BlockSize())
	}
	for k, u := range w.users {
		for j := range s.workers {
			client := k*s.workers + j
			own := w.rand(uint64(100 + client))
			w.busy.Go(func() { u.work(own, &v, client, s.think) })
		}
	}
	for k, f := range w.fencers {
		var others []*fencer
		for _, o := range w.fencers {
			if o != f {
				others = append(others, o)
			}
		}
		for j := range 2 {
			own := w.rand(uint64(200 + 10*k + j))
			w.busy.Go(func() { f.write(own, &v) })
		}
		own := w.rand(uint64(300 + k))
		w.busy.Go(func() { f.act(own, others) })
	}
	if s.control {
		own := w.rand(12)
		w.busy.Go(func() { c.work(own, w.luns) })
	}
	return true
}

func playFaults(w *world, rng *rand.Rand) {
	s := setup{users: 1 + rng.IntN(2), workers: 2, think: 60 * time.Millisecond, fencers: 2 * rng.IntN(2), half: true, control: rng.IntN(2) == 0}
	if !w.populate(rng, s) {
		return
	}
	w.trouble(rng, 3+rng.IntN(4))
	w.setQuiet()
	if w.awaitSync() {
		time.Sleep(2 * time.Second)
	}
}

// playFencing has several hosts that fence, reset and abort each other, while nothing fails: every command has to be answered soon, and
// no node may leave.
func playFencing(w *world, rng *rand.Rand) {
	if !w.populate(rng, setup{users: 1, workers: 1, think: 50 * time.Millisecond, fencers: 2 + rng.IntN(2), half: true, strict: true, bound: fenceBound}) {
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

// playFailures has disks that fail, one at a time: the node leaves, is started again, copied to, and serves.
func playFailures(w *world, rng *rand.Rand) {
	if !w.populate(rng, setup{users: 1, workers: 2, think: 40 * time.Millisecond, control: true}) {
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

// playStops stops nodes in an orderly way, also while they are cut off from everything: a stop ends within its bound.
func playStops(w *world, rng *rand.Rand) {
	if !w.populate(rng, setup{users: 1, workers: 2, think: 30 * time.Millisecond}) {
		return
	}
	for range 3 {
		w.pause(rng, 100*time.Millisecond, time.Second)
		i := rng.IntN(2)
		cut := rng.IntN(2) == 0
		if cut {
			w.count("machine cut off")
			w.alone(i, 1)
			w.record.set(func(r *record) { r.away = true })
			w.pause(rng, 0, 300*time.Millisecond)
		}
		if l := w.nodes[i].live(); l != nil && !l.isDead() {
			w.count("orderly restart")
			l.asked.Store(true)
			l.cancel()
			select {
			case <-l.done:
			case <-time.After(stopBound):
				w.fail("node %s: an orderly stop has not ended after %v", name(i), stopBound)
				w.end(w.nodes[i], l)
			}
		}
		if cut {
			w.alone(i, -1)
			w.record.set(func(r *record) { r.away = false })
		}
		if !w.awaitSync() {
			return
		}
	}
	w.setQuiet()
	time.Sleep(time.Second)
}

// playStrays has hosts whose way to a node is cut until they have given it up: what they had sent arrives when they have gone on, slowly.
func playStrays(w *world, rng *rand.Rand) {
	if !w.populate(rng, setup{users: 1 + rng.IntN(2), workers: 10, think: 1500 * time.Millisecond}) {
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
			if l := w.nodes[1-i].live(); l != nil && !l.isDead() {
				w.count("kill")
				w.end(w.nodes[1-i], l)
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

// hotLimit is how long a command may take that has nothing to wait for, while others wait for slow disks.
const hotLimit = 250 * time.Millisecond

// playSlowReads has one LUN all of whose reads miss the page cache and whose writes wait, on both nodes, beside one that is in the page
// cache. Hosts use both over one session, to the owner and to the other node: what is slow must hold nothing else up.
func playSlowReads(w *world, rng *rand.Rand) {
	if !w.populate(rng, setup{users: 1, workers: 2, think: 100 * time.Millisecond, bound: 20 * time.Second, mixers: true}) {
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
		for j := range 3 {
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
			f := func(c *condition) { c.delay = d }
			w.net.set(fmt.Sprintf("127.0.1.%d", 1+k), nodeAddr[i], f)
			w.net.set(nodeAddr[i], fmt.Sprintf("127.0.1.%d", 1+k), f)
		}
	}
	if !w.populate(rng, setup{users: users, workers: 1, think: 20 * time.Millisecond, ping: 20 * time.Second, bound: 20 * time.Second}) {
		return
	}
	w.setQuiet()
	w.calm(15 * time.Second)
}

func playBusyDisks(w *world, rng *rand.Rand) {
	if !w.populate(rng, setup{users: 2, workers: 3, think: 10 * time.Millisecond, bound: 30 * time.Second}) {
		return
	}
	for _, m := range w.nodes {
		s := speed{read: time.Duration(1+rng.IntN(50)) * time.Millisecond, flush: time.Duration(5+rng.IntN(900)) * time.Millisecond, bandwidth: 1e6 + rng.Float64()*4e6}
		m.disk.set(func(d *disk) { d.speed = s })
	}
	w.setQuiet()
	w.calm(10 * time.Second)
}

// finish ends the hosts, compares what has to be equal, stops the nodes and looks at what is left.
func (w *world) finish() {
	close(w.idle)
	ended := make(chan struct{})
	go func() { w.busy.Wait(); close(ended) }()
	w.mu.Lock()
	healthy := !w.unserved && len(w.violations) == 0
	w.mu.Unlock()
	limit := 2 * ioBound // on top of what each may take: what waits for another
	if !healthy {
		limit = time.Second
	}
	select {
	case <-ended:
	case <-time.After(limit):
		for _, u := range w.users {
			w.trace("%s: %+v", u.name, u.dev.Paths())
		}
		if w.tracer != nil {
			w.still(func() { w.trace("%s", strings.Join(strangers(), "\n\n")) })
		}
		for _, s := range w.pendingNow() {
			if healthy {
				w.fail("%s", s)
			}
		}
		healthy = false
	}
	if healthy {
		w.compare()
	}
	close(w.over)
	for _, h := range w.histories {
		h.judge(w, "a LUN's")
	}
	for _, f := range append(w.fencers, w.mixers...) {
		f.close()
	}
	var wg sync.WaitGroup
	for _, u := range w.users {
		if u.dev != nil {
			wg.Go(u.close)
		}
	}
	w.must("the hosts do not end", func() { wg.Wait(); <-ended })
	if w.caller != nil {
		w.caller.close()
	}
	w.stopNodes()
	w.must("the nodes do not end", w.wg.Wait)
	w.closing(healthy)
}

// endBound is how long anything may take to end, when nobody waits for it any more.
const endBound = 2 * time.Minute

// must waits for an end without which the bubble cannot end. If it does not come, the process has to end.
func (w *world) must(what string, wait func()) {
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(endBound):
		w.fail("%s", what)
		stuck(w.seed, strings.Join(w.violations, "\n"), strings.Join(strangers(), "\n\n"))
	}
}

// closing looks at what is left when everything has ended.
func (w *world) closing(healthy bool) {
	time.Sleep(30 * time.Second) // timers of what has ended
	if err := w.net.free(); err != nil && healthy {
		w.fail("%v", err)
	}
	time.Sleep(time.Second)
	w.still(func() {
		if left := strangers(); len(left) > 0 {
			w.fail("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
		}
	})
}

var bubble = regexp.MustCompile(`synctest bubble (\d+)`)

// strangers are the goroutines of this bubble beside the one at hand.
func strangers() (list []string) {
	buf := make([]byte, 8<<20)
	stacks := bytes.Split(buf[:runtime.Stack(buf, true)], []byte("\n\n"))
	own := bubble.FindSubmatch(stacks[0])
	if own == nil {
		return nil
	}
	for _, s := range stacks[1:] {
		head, _, _ := bytes.Cut(s, []byte("\n"))
		if m := bubble.FindSubmatch(head); m != nil && string(m[1]) == string(own[1]) && !bytes.Contains(s, []byte("synctest.Run(")) && !bytes.Contains(s, []byte("testingSynctestTest")) {
			list = append(list, string(s))
		}
	}
	return list
}

// pendingNow lists what has not ended.
func (w *world) pendingNow() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.ops {
		list = append(list, fmt.Sprintf("%s is not answered %v after it began", p.what, time.Since(p.since)))
	}
	return list
}

// compare looks at what both nodes have to have alike: an entry gets through, reservations and modes, and the data of every LUN.
func (w *world) compare() {
	if w.caller == nil || len(w.luns) == 0 {
		return
	}
	rng := w.rand(13)
	if _, err := call(w.caller, rng, "a last entry", func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.Mapping, error) {
		return t.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: w.luns[0].id, HostIqn: hostName("last")})
	}); err != nil {
		w.fail("the last entry: %v", err)
		return
	}
	if !w.awaitSync() {
		return
	}
	a, _ := w.nodes[0].view()
	b, _ := w.nodes[1].view()
	if a.LogIndex != b.LogIndex {
		w.fail("node a has applied entry %d, node b entry %d", a.LogIndex, b.LogIndex)
	}
	if len(w.fencers) > 0 {
		w.compareReservations(w.fencers[0])
	}
	for _, l := range append(w.luns, w.shared) {
		if l != nil {
			w.compareData(l)
		}
	}
}

func (w *world) compareData(l *lun) {
	var sums [2][]byte
	for i, m := range w.nodes {
		b, err := os.ReadFile(filepath.Join(m.live().dir, "volumes", "default", "luns", l.id+".img"))
		if err != nil {
			w.fail("%v", err)
			return
		}
		sums[i] = b
	}
	if !bytes.Equal(sums[0], sums[1]) {
		at := 0
		for at < len(sums[0]) && at < len(sums[1]) && sums[0][at] == sums[1][at] {
			at++
		}
		w.fail("the copies of %s differ from byte %d on", l.name, at)
	}
}

// compareReservations asks both nodes.
func (w *world) compareReservations(f *fencer) {
	for _, q := range []struct {
		what string
		cdb  []byte
	}{{"READ KEYS", prIn(0)}, {"READ RESERVATION", prIn(1)}, {"READ FULL STATUS", prIn(3)}, {"MODE SENSE", []byte{0x5a, 0x08, 0x3f, 0, 0, 0, 0, 4, 0, 0}}} {
		var got [2][]byte
		for i := range got {
			b := make([]byte, 4096)
			for range 50 {
				a := f.exec(i, q.what, 0, q.cdb, nil, b)
				if a.ok {
					got[i] = b[:a.got]
					break
				}
				if a.err == nil && a.status == 0x18 { // RESERVATION CONFLICT: a command that needs no more than to be asked
					got[i] = []byte("conflict")
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		if got[0] == nil || got[1] == nil || !bytes.Equal(got[0], got[1]) {
			w.fail("%s of %s: node a says % x, node b % x", q.what, f.lun.name, got[0], got[1])
		}
	}
}
