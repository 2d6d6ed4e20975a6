package tiering

import "time"

// ExtentSize is the length in bytes of what moves as one.
const ExtentSize = 4 << 20

// Tier is where an extent lies.
type Tier uint8

// The tiers. An extent that was never written lies nowhere, and takes no room.
const (
	Unwritten Tier = iota
	Fast
	Capacity
)

func (t Tier) String() string { return [...]string{"unwritten", "fast", "capacity"}[min(t, Capacity)] }

// Pin keeps a LUN on a tier.
type Pin uint8

// The pins.
const (
	Unpinned Pin = iota
	PinFast
	PinCapacity
)

// Reason says why an extent moves.
type Reason string

// The reasons.
const (
	ReasonPin      Reason = "pin"      // its LUN is pinned to the tier
	ReasonReserve  Reason = "reserve"  // too little of Fast is free
	ReasonHeat     Reason = "heat"     // it is used enough to pay for the move, and Fast has room
	ReasonDisplace Reason = "displace" // it is used much more than the one whose place it takes
	ReasonMakeRoom Reason = "make room"
)

// Count is how often hosts used an extent since the last round: reads that the page cache did not
// have, and writes, without those that are part of a long sequence.
type Count struct {
	Extent        int
	Reads, Writes uint32
}

// LUN is what a node knows of one LUN.
type LUN struct {
	ID     uint64
	Pin    Pin
	Place  []Tier // by extent
	Counts []Count
	// Fixed tells of an extent that must not move for heat, as one that snapshots share; nil: none.
	Fixed func(extent int) bool
}

// View is what a round knows.
type View struct {
	LUNs   []LUN
	Room   int // extents that Fast holds, all in all
	Budget int // moves that may be begun in this round; Decide returns no more
}

// Move takes an extent to another tier. Moves are carried out in their order: one makes room for
// the next.
type Move struct {
	LUN    uint64
	Extent int
	To     Tier
	Reason Reason
	// Rate is how often the extent is used at least (to Fast) or at most (to Capacity), in
	// accesses a second.
	Rate float64
}

// Config is fixed for the life of a policy.
type Config struct {
	Round time.Duration // between two calls of Decide, more than 0
	// Saved is how much less device time a random read takes on Fast. 0 or less: the tiers are
	// equally fast, and nothing moves for heat.
	Saved time.Duration
	// Move is the device time that moving one extent takes, of both devices together.
	Move time.Duration
}

// What the policy is tuned by.
const (
	// Gain is how many times as often an extent has to be used as the one whose place it takes.
	Gain = 2
	// Horizon is how long an extent is expected to stay as hot as it is.
	Horizon = time.Hour
	// A rate is known from two averages: one that learns soon, and one that tells apart what is
	// used seldom. The constants are the times after which 1/e of an average is left.
	soon  = 7 * time.Minute
	later = 2 * time.Hour
	// writeWeight: a write costs the device as much as a read, but no host waits for it, and
	// several may be one at the device.
	writeWeight = 0.5
	// sure is by how many standard deviations a rate may differ from what was counted. A pool has
	// a million extents: of those that are used alike, many are three deviations apart.
	sure = 4
	// reserveShare of Fast, as a fraction, stays free.
	reserveShare = 0.01
)
