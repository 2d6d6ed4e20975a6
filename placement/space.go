package placement

// Space says how much a pool of a pair can still take.
type Space int

// The states of a pool, the worse one the greater.
const (
	SpaceEnough Space = iota
	// SpaceOvercommitted: as much is promised to LUNs as may be; new LUNs are refused.
	SpaceOvercommitted
	// SpaceNearFull: less than NearFullBelow percent are free.
	SpaceNearFull
	// SpaceFull: less than FullBelow percent are free. Writes that need space end with an error, or
	// will very soon.
	SpaceFull
)

// Free space of a pool, in percent of its capacity, below which it is nearly full and full. LUNs
// are thin: they share the free space.
const (
	NearFullBelow = 10
	FullBelow     = 1
)

// margin is how many percent more have to be free for a pool to leave a state: what is free changes
// with each write, and an alert must not come and go with it.
const margin = 1

// promisedFrom is how many percent of what may be promised have to be promised for a pool to be
// SpaceOvercommitted. A pool is seldom promised to the last byte.
const promisedFrom = 95

// FreePercent is how many percent of its capacity are free.
func (x *Pool) FreePercent() float64 {
	if x.Capacity <= 0 {
		return 0
	}
	return 100 * float64(x.Free) / float64(x.Capacity)
}

// Space is the state of a pool that was in a state before. A pool without capacity has enough:
// nothing is known of it.
func (x *Pool) Space(before Space) Space {
	if x.Capacity <= 0 {
		return SpaceEnough
	}
	limit := func(s Space, below float64) float64 {
		if before >= s {
			return below + margin
		}
		return below
	}
	switch free := x.FreePercent(); {
	case free < limit(SpaceFull, FullBelow):
		return SpaceFull
	case free < limit(SpaceNearFull, NearFullBelow):
		return SpaceNearFull
	case x.Promisable > 0 && float64(x.Promised) >= float64(x.Promisable)/100*promisedFrom:
		return SpaceOvercommitted
	}
	return SpaceEnough
}

// Worst is the pool of a pair in the worst state, the first one of several; nil without pools.
func Worst(pools []Pool, before Space) (worst *Pool, state Space) {
	for i := range pools {
		if s := pools[i].Space(before); worst == nil || s > state {
			worst, state = &pools[i], s
		}
	}
	return worst, state
}
