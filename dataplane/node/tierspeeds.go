package node

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/store"
)

// How fast the places of a volume are is measured, not configured: what a move to the fast tier
// saves depends on it, and so does whether members of one tier should be mixed at all.

const (
	// A place is as fast as the median of its last looks says, in each of which the shortest of
	// several reads counts: hosts are at work, too.
	speedLooks = 5
	speedReads = 3
	// The fast tier has to be so many times as fast as the other one, or nothing moves for heat.
	fastEnough = 1.5
	// Members of one tier whose reads take so many times as long as another member's are named.
	unlike = 5
	// Shorter reads than this do not differ enough to be named.
	unlikeFrom = 500 * time.Microsecond
)

// speeds are how long a read takes at each place.
type speeds struct {
	mu sync.Mutex
	of map[speedKey][]time.Duration // the last looks
}

type speedKey struct {
	volume string
	place  uint8
}

// measure looks at all places of volumes that have several.
func (n *Node) measure() {
	for _, v := range n.store.Volumes() {
		list := v.Places()
		if len(list) < 2 {
			continue
		}
		before := n.slowMembers(v)
		var wg sync.WaitGroup
		for i := range list {
			wg.Go(func() {
				if took, err := shortestRead(n, &list[i]); err == nil {
					n.tiers.speeds.add(speedKey{v.Name(), list[i].Number}, took)
				}
			})
		}
		wg.Wait()
		now := n.slowMembers(v)
		for _, number := range slices.Sorted(maps.Keys(now)) {
			if before[number] == "" {
				n.log.Warn("members of a backing volume differ in speed; a LUN is as fast as the slowest of them", "volume", v.Name(), "why", now[number])
				n.event("members", fmt.Sprintf("backing volume %s: %s", v.Name(), now[number]))
			}
		}
	}
}

func shortestRead(n *Node, p *store.Place) (least time.Duration, err error) {
	for i := range speedReads {
		if n.run.ctx.Err() != nil {
			return 0, n.run.ctx.Err()
		}
		took, err := p.ReadTime()
		if err != nil {
			return 0, err
		}
		if i == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

func (s *speeds) add(k speedKey, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := append(s.of[k], took)
	s.of[k] = list[max(len(list)-speedLooks, 0):]
}

// read is how long a read takes at a place; 0: that is not known yet.
func (s *speeds) read(k speedKey) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Sorted(slices.Values(s.of[k]))
	if len(list) == 0 {
		return 0
	}
	return list[len(list)/2]
}

// tier is how long a read takes in a tier of a volume, on average over its places.
func (s *speeds) tier(v *store.BackingVolume, fast bool) time.Duration {
	var sum, count time.Duration
	for _, p := range v.Places() {
		if took := s.read(speedKey{v.Name(), p.Number}); p.Fast == fast && took > 0 {
			sum, count = sum+took, count+1
		}
	}
	return sum / max(count, 1)
}

// saved is how much shorter a read is on the fast tier; 0: it is not, and why.
func (s *speeds) saved(v *store.BackingVolume) (saved time.Duration, why string) {
	fast, capacity := s.tier(v, true), s.tier(v, false)
	switch {
	case fast == 0 || capacity == 0:
		return 0, "the members have not been measured yet"
	case float64(fast)*fastEnough > float64(capacity):
		return 0, fmt.Sprintf("a read takes %v on the fast tier and %v on the other one: nothing is gained by moving what is used much", round(fast), round(capacity))
	}
	return capacity - fast, ""
}

// slowMembers says of places by number that they are much slower than another one of their tier.
func (n *Node) slowMembers(v *store.BackingVolume) map[uint8]string {
	slow := map[uint8]string{}
	list := v.Places()
	for _, p := range list {
		took := n.tiers.speeds.read(speedKey{v.Name(), p.Number})
		for _, x := range list {
			other := n.tiers.speeds.read(speedKey{v.Name(), x.Number})
			if x.Fast == p.Fast && other > 0 && took > unlikeFrom && took > unlike*other {
				slow[p.Number] = fmt.Sprintf("a read takes %v at member %s, and %v at %s: members of one tier should be alike", round(took), p.Name, round(other), x.Name)
			}
		}
	}
	return slow
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
