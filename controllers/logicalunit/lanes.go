package logicalunit

import (
	"sync"
	"time"
)

// lanes keep LUNs of a pair that is slow to answer from taking all reconciles: those of other pairs
// would wait for it. Only reconciles that have taken longer than slowAfter count, so a pair that
// answers has as many at a time as there are.
type lanes struct {
	mu    sync.Mutex
	begun map[string]map[*lane]bool // by pair
}

type lane struct{ at time.Time }

const (
	// slowAfter is how long a reconcile has taken when it counts as slow.
	slowAfter = time.Second
	// maxSlow is how many slow reconciles of a pair there may be when another one begins.
	maxSlow = 8
	// slowRetry is when a reconcile that could not begin is tried again.
	slowRetry = 2 * time.Second
)

// enter begins a reconcile of a LUN of a pair; ok is false if it must wait. leave ends it.
func (l *lanes) enter(pair string, now time.Time) (leave func(), ok bool) {
	if pair == "" {
		return func() {}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slow := 0
	for x := range l.begun[pair] {
		if now.Sub(x.at) > slowAfter {
			slow++
		}
	}
	if slow >= maxSlow {
		return nil, false
	}
	x := &lane{now}
	if l.begun == nil {
		l.begun = map[string]map[*lane]bool{}
	}
	if l.begun[pair] == nil {
		l.begun[pair] = map[*lane]bool{}
	}
	l.begun[pair][x] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(l.begun[pair], x); len(l.begun[pair]) == 0 {
			delete(l.begun, pair)
		}
	}, true
}
