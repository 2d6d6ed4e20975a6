package nodesim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// setup is what uses the LUNs of a history.
type setup struct {
	users   int           // hosts of each LUN
	workers int           // of each of these hosts
	fencers int           // hosts that share a LUN and fence each other
	mixers  bool          // two hosts that can reach a slow LUN and a fast one over one session
	think   time.Duration // the longest pause of a worker
	ping    time.Duration // how long an answer to a ping may take
	strict  bool          // nothing fails
	half    bool          // every other fencer sends its data only when it is asked for
	control bool          // the caller is at work as well
	crowd   bool          // and several callers at the same time
	bound   time.Duration // of one operation of a worker, once nothing fails any more; 0: ioBound
}

// populate makes LUNs and hosts, and sets them to work. It returns false after a failure, which it
// has reported.
func (w *world) populate(s setup) bool {
	if s.bound == 0 {
		s.bound = ioBound
	}
	if err := w.makeLUNs(s); err != nil {
		w.fail("%v", err)
		return false
	}
	if !w.openDevices(s) {
		return false
	}
	var v values
	w.startUsers(s, &v)
	w.startFencers(&v)
	if w.members {
		for i := range w.nodes {
			own := w.rand(20 + uint64(i))
			w.busy.Go(func() { w.moveExtents(own, i) })
		}
	}
	if s.control {
		own := w.rand(12)
		w.busy.Go(func() { w.caller.work(own, w.luns) })
	}
	if s.crowd {
		own := w.rand(16)
		w.busy.Go(func() { w.caller.crowd(own) })
	}
	return true
}

// makeLUNs makes two LUNs with the hosts that use one each, and the LUN that fencers share.
func (w *world) makeLUNs(s setup) error {
	c, err := newCaller(w)
	if err != nil {
		return err
	}
	w.caller = c
	own := w.rand(11)
	for i := range 2 {
		if err := w.makeData(own, i, s); err != nil {
			return err
		}
	}
	if s.fencers > 0 {
		if err := w.makeShared(own, s); err != nil {
			return err
		}
	}
	if s.mixers {
		for k := range 2 {
			w.mixers = append(w.mixers, newFencer(w, k+1, w.luns[0], false, true))
		}
	}
	return nil
}

// makeData makes the LUN that prefers node i, and its hosts.
func (w *world) makeData(rng *rand.Rand, i int, s setup) error {
	var names []string
	for k := range s.users {
		names = append(names, hostName(fmt.Sprintf("user%d", 2*k+i)))
	}
	hosts := slices.Clone(names)
	if s.mixers {
		hosts = append(hosts, hostName("fence1"), hostName("fence2"))
	}
	l, err := w.caller.make(rng, fmt.Sprintf("data%d", i), name(i), 64<<20, hosts...)
	if err != nil {
		return err
	}
	w.luns = append(w.luns, l)
	h := &history{}
	w.histories = append(w.histories, h)
	for k := range names {
		id := 2*k + i
		w.users = append(w.users, &user{w: w, id: id, addr: userAddr(id), name: names[k], lun: l, h: h, bound: s.bound})
	}
	return nil
}

// makeShared makes the LUN that fencers share.
func (w *world) makeShared(rng *rand.Rand, s setup) error {
	l, err := w.caller.make(rng, "shared", "", 64<<20)
	if err != nil {
		return err
	}
	for k := range s.fencers {
		f := newFencer(w, k+1, l, s.half && k%2 == 0, s.strict)
		if err := w.caller.mapHost(rng, l, f.name); err != nil {
			return err
		}
		w.fencers = append(w.fencers, f)
	}
	w.shared = l
	return nil
}

// openDevices has all users log in at the same time.
func (w *world) openDevices(s setup) bool {
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
	return true
}

func (w *world) startUsers(s setup, v *values) {
	for k, u := range w.users {
		for j := range s.workers {
			client := k*s.workers + j
			own := w.rand(uint64(100 + client))
			w.busy.Go(func() { u.work(own, v, client, s.think) })
		}
	}
}

func (w *world) startFencers(v *values) {
	for k, f := range w.fencers {
		var others []*fencer
		for _, o := range w.fencers {
			if o != f {
				others = append(others, o)
			}
		}
		for j := range 2 {
			own := w.rand(uint64(200 + 10*k + j))
			w.busy.Go(func() { f.write(own, v) })
		}
		own := w.rand(uint64(300 + k))
		w.busy.Go(func() { f.act(own, others) })
	}
}
