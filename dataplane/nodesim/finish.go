package nodesim

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// finish ends the hosts, compares what has to be equal, stops the nodes and looks at what is left.
func (w *world) finish() {
	close(w.idle)
	ended := make(chan struct{})
	go func() { w.busy.Wait(); close(ended) }()
	healthy := w.awaitHosts(ended)
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

// awaitHosts waits for the end of what hosts have asked for. It returns whether everything has been
// as it should be so far.
func (w *world) awaitHosts(ended <-chan struct{}) bool {
	w.mu.Lock()
	healthy := !w.unserved && len(w.violations) == 0
	w.mu.Unlock()
	limit := 2 * ioBound // on top of what each may take: what waits for another
	if !healthy {
		limit = time.Second
	}
	select {
	case <-ended:
		return healthy
	case <-time.After(limit):
	}
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
	return false
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
