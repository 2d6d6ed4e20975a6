package nodesim

import (
	"math/rand/v2"
	"time"

	"github.com/gemel-storage/gemel/dataplane/store"
)

// fault is one kind of thing that goes wrong. It lasts for a time and then ends.
type fault struct {
	name string
	do   func(w *world, rng *rand.Rand, i int)
	solo bool // only while both nodes are in sync, and they are waited for afterwards
}

// hold keeps something for a time.
func (w *world) hold(rng *rand.Rand, least, most time.Duration) {
	time.Sleep(least + time.Duration(rng.Int64N(int64(most-least))))
}

// hosts are the addresses of all that are no nodes.
func (w *world) hosts() (list []string) {
	list = append(list, callerAddr)
	for _, u := range w.users {
		list = append(list, u.addr)
	}
	for _, f := range w.fencers {
		list = append(list, f.addr)
	}
	return list
}

// alone cuts a machine off in both directions, or lets it back.
func (w *world) alone(i, by int) {
	for _, x := range append(w.hosts(), nodeAddr[1-i]) {
		w.net.cutBoth(nodeAddr[i], x, by)
	}
}

var faults = []fault{
	{name: "kill", do: func(w *world, _ *rand.Rand, i int) { w.kill(i) }},
	{name: "kill both", do: func(w *world, _ *rand.Rand, _ int) {
		for i := range w.nodes {
			w.kill(i)
		}
	}},
	{name: "orderly restart", do: func(w *world, _ *rand.Rand, i int) {
		if l := w.nodes[i].running(); l != nil {
			l.stop()
		}
	}},
	{name: "stopped", do: func(w *world, rng *rand.Rand, i int) {
		d := time.Duration(300+rng.IntN(3000)) * time.Millisecond
		w.alone(i, 1)
		w.nodes[i].freeze(d)
		time.Sleep(d)
		w.alone(i, -1)
	}},
	{name: "machine cut off", do: func(w *world, rng *rand.Rand, i int) {
		w.alone(i, 1)
		w.hold(rng, 200*time.Millisecond, 4*time.Second)
		w.alone(i, -1)
	}},
	{name: "link cut", do: func(w *world, rng *rand.Rand, _ int) {
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], 1)
		w.hold(rng, 100*time.Millisecond, 4*time.Second)
		w.net.cutBoth(nodeAddr[0], nodeAddr[1], -1)
	}},
	{name: "link cut one way", do: func(w *world, rng *rand.Rand, i int) {
		w.net.cut(nodeAddr[i], nodeAddr[1-i], 1)
		w.hold(rng, 100*time.Millisecond, 4*time.Second)
		w.net.cut(nodeAddr[i], nodeAddr[1-i], -1)
	}},
	{name: "link slow", do: func(w *world, rng *rand.Rand, i int) {
		d := time.Duration(rng.IntN(150)) * time.Millisecond
		w.net.setBoth(nodeAddr[i], nodeAddr[1-i], func(c *condition) { c.delay, c.rate = d, 2e6 })
		w.hold(rng, 500*time.Millisecond, 4*time.Second)
		w.net.setBoth(nodeAddr[i], nodeAddr[1-i], func(c *condition) { c.delay, c.rate = usualDelay, 0 })
	}},
	{name: "host cut from a node", do: func(w *world, rng *rand.Rand, i int) {
		hosts := w.hosts()
		h := hosts[rng.IntN(len(hosts))]
		cut := w.net.cut
		if rng.IntN(2) == 0 {
			cut = w.net.cutBoth
		}
		cut(h, nodeAddr[i], 1)
		w.hold(rng, 100*time.Millisecond, 5*time.Second)
		cut(h, nodeAddr[i], -1)
	}},
	{name: "host slow", do: func(w *world, rng *rand.Rand, i int) {
		hosts := w.hosts()
		h := hosts[rng.IntN(len(hosts))]
		d := time.Duration(rng.IntN(1200)) * time.Millisecond
		w.net.setBoth(h, nodeAddr[i], func(c *condition) { c.delay = d })
		w.hold(rng, 500*time.Millisecond, 4*time.Second)
		w.net.setBoth(h, nodeAddr[i], func(c *condition) { c.delay = usualDelay })
	}},
	{name: "disk slow", do: func(w *world, rng *rand.Rand, i int) {
		s := speed{read: time.Duration(1+rng.IntN(300)) * time.Millisecond, flush: time.Duration(1+rng.IntN(300)) * time.Millisecond, bandwidth: 1e6 + rng.Float64()*20e6}
		w.nodes[i].disk.set(func(d *disk) { d.speed, d.hit = s, 0.1 })
		w.hold(rng, 500*time.Millisecond, 5*time.Second)
		w.nodes[i].disk.set(func(d *disk) { d.speed, d.hit = usualSpeed, 0.7 })
	}},
	{name: "disk stuck", do: func(w *world, rng *rand.Rand, i int) {
		w.nodes[i].disk.stick(time.Duration(200+rng.IntN(9000)) * time.Millisecond)
		w.hold(rng, 200*time.Millisecond, 9*time.Second)
	}},
	{name: "disk fails", solo: true, do: func(w *world, rng *rand.Rand, i int) {
		op := []string{store.FaultWrite, store.FaultSync, store.FaultRead, store.FaultIntent}[rng.IntN(4)]
		w.nodes[i].disk.set(func(d *disk) { d.fail[op] = 1 })
		w.hold(rng, time.Second, 2*time.Second)
		w.nodes[i].disk.set(func(d *disk) { d.fail[op] = 0 })
	}},
	{name: "arbiter away", do: func(w *world, rng *rand.Rand, _ int) {
		w.record.setAway(true)
		w.hold(rng, 200*time.Millisecond, 4*time.Second)
		w.record.setAway(false)
	}},
	{name: "arbiter slow, loses answers, late", do: func(w *world, rng *rand.Rand, i int) {
		w.record.set(func(r *record) { r.delay, r.lossy, r.late = time.Duration(rng.IntN(600))*time.Millisecond, 0.3, 0.3 })
		w.nodes[i].w.hold(rng, 500*time.Millisecond, 4*time.Second)
		w.record.set(func(r *record) { r.delay, r.lossy, r.late = 2*time.Millisecond, 0, 0 })
	}},
}

// recovery is how long both nodes may take after the last fault until they are in sync.
const recovery = 60 * time.Second

// trouble plays faults, one or two at a time.
func (w *world) trouble(rng *rand.Rand, episodes int) {
	for range episodes {
		w.pause(rng, 100*time.Millisecond, 1500*time.Millisecond)
		f := &faults[rng.IntN(len(faults))]
		i := rng.IntN(2)
		if f.solo && !w.awaitSync() {
			return
		}
		w.trace("FAULT %s of node %s", f.name, name(i))
		w.count(f.name)
		if second := &faults[rng.IntN(len(faults))]; rng.IntN(3) == 0 && !f.solo && !second.solo {
			w.trace("FAULT %s of node %s with it", second.name, name(1-i))
			w.count(second.name)
			done := make(chan struct{})
			other := rand.New(rand.NewPCG(rng.Uint64(), 1))
			go func() { defer close(done); second.do(w, other, 1-i) }()
			f.do(w, rng, i)
			<-done
		} else {
			f.do(w, rng, i)
		}
		w.trace("fault ended: %s", f.name)
		if f.solo || rng.IntN(2) == 0 {
			if !w.awaitSync() {
				return
			}
		}
	}
}

// awaitSync waits until both nodes serve. Nothing fails meanwhile, so they have to within the
// bound.
func (w *world) awaitSync() bool {
	if w.await(recovery, func() bool { ok, _ := w.inSync(); return ok }) {
		return true
	}
	_, saw := w.inSync()
	w.fail("the nodes do not serve again %v after the last fault: %s", recovery, saw)
	w.mu.Lock()
	w.unserved = true
	w.mu.Unlock()
	return false
}
