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
	bound   time.Duration // of one operation of a worker, once nothing fails any more; 0: ioBound
}

// populate makes LUNs and hosts, and sets them to work. It returns false after a failure, which it has reported.
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
