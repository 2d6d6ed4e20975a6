package balance

import "time"

// Node is one of the two nodes of a pair, or None.
type Node uint8

// The nodes.
const (
	A Node = iota
	B
	None
)

// Peer is the other node.
func (n Node) Peer() Node {
	if n == None {
		return None
	}
	return 1 - n
}

func (n Node) String() string { return [...]string{"a", "b", "none"}[min(n, None)] }

// Mode says what the balancer may do.
type Mode uint8

// Off follows pins only. Observe decides and explains, and moves nothing but pinned LUNs. Auto
// moves.
const (
	Auto Mode = iota
	Observe
	Off
)

func (m Mode) String() string { return [...]string{"auto", "observe", "off"}[min(m, Off)] }

// ParseMode reads "auto", "observe" or "off"; empty is Auto.
func ParseMode(s string) (m Mode, ok bool) {
	switch s {
	case "", "auto":
		return Auto, true
	case "observe":
		return Observe, true
	case "off":
		return Off, true
	}
	return Off, false
}

// The windows over which loads are averaged, and limits.
const (
	FastWindow = 10 * time.Second
	SlowWindow = 5 * time.Minute
	// MovesPerHour bounds the moves of one LUN, whatever the reason, except pins and drains.
	MovesPerHour = 6
	// FollowTime is how long hosts may take to follow a move: what is forwarded meanwhile says
	// nothing.
	FollowTime = time.Minute
)

// Policy of a pair. The zero value of a field means its default.
type Policy struct {
	Mode          Mode
	FailBackDelay time.Duration // how long home has to be a member before LUNs return; default 30 s
	Gate          float64       // share of a node's capacity below which nothing is balanced; default 0.4
	Saturated     float64       // share above which, on both nodes, nothing is balanced; default 0.95
	Bound         float64       // difference of the nodes, as a share of their sum, that is left alone; default 0.1
	ROI           float64       // a balancing move gains at least so many times its cost; default 3
	Rest          time.Duration // of a LUN after a move; doubles with each relapse; default 30 s
}

// Delay is how long home has to be a member before LUNs return.
func (p Policy) Delay() time.Duration { return p.withDefaults().FailBackDelay }

func (p Policy) withDefaults() Policy {
	def := func(x *float64, v float64) {
		if *x == 0 {
			*x = v
		}
	}
	def(&p.Gate, 0.4)
	def(&p.Saturated, 0.95)
	def(&p.Bound, 0.1)
	def(&p.ROI, 3)
	if p.FailBackDelay == 0 {
		p.FailBackDelay = 30 * time.Second
	}
	if p.Rest == 0 {
		p.Rest = 30 * time.Second
	}
	return p
}

// View is what the chair sees at one instant. Work is measured in seconds of one node's capacity: a
// rate of 1 is a node that is fully used. It is time of CPUs, or of the disks under one backing
// volume, whichever is scarcer in the pair; not the sum of latencies, which grows with congestion.
type View struct {
	Now       int64 // ns of a monotonic clock
	Disturbed int64 // the last change of epoch, resync, roll, scrub or cut; 0: none since the chair began
	Nodes     [2]NodeView
	LUNs      []LUN
	Disk      string // backing volume whose disks are the resource that all work is measured in; empty: CPUs
}

// NodeView is one node.
type NodeView struct {
	Member  bool
	Since   int64   // a member without interruption since then
	Drained bool    // a log entry forbids it to own anything
	Crashed bool    // its process crashed, and runs for less than a minute again: what ended it may do so once more
	Use     float64 // share of its capacity that is used over the slow window; the work of LUNs counts where they are now
}

// LUN as the chair sees it.
type LUN struct {
	ID     string
	Owner  Node
	Home   Node   // where the LUN belongs, durable in the log
	Pin    Node   // an administrator's rule; None: there is none
	Near   Node   // the node nearer to the only consumer; None: no consumer, or several, or both are
	NearBy string // what that node and the consumer have in common, for people
	Group  string // members of a group stay spread; empty: no group
	Held   int64  // a person moved it: nothing but a pin, a drain or connectivity moves it before then
	Volume string // backing volume
	Class  uint8  // latency class: LUNs of one class are moved together

	Fast, Slow float64 // work of the front end per second, summed over both nodes, over each window
	NearGain   float64 // work per second that is saved while the owner is the node Near
	Pause      float64 // seconds for which a move holds its commands, as measured lately
	Cold       float64 // seconds of work to read again what the new owner's cache lacks
	Crowds     bool    // at the other node it would make another resource scarcer than the one that work is measured in

	Hosts []Host
}

// Host is a host that the LUN is mapped to and that has a session at one node at least.
type Host struct {
	Name    string
	Active  bool     // has read or written within the slow window: path checks are no vote
	Session [2]bool  // is logged in there, and answers pings
	CanUse  [2]bool  // and has shown since that login that its multipath layer knows the path
	Since   [2]int64 // when CanUse last changed
	Work    float64  // its part of the LUN's work per second, over the slow window
	Other   float64  // share of its bytes that came to the node that does not own the LUN, over the slow window
}

// Reason is why a LUN moves or stays.
type Reason string

// The reasons for moves, in their order.
const (
	ReasonDrain        Reason = "Drain"
	ReasonPin          Reason = "Pin"
	ReasonConnectivity Reason = "Connectivity"
	ReasonUnusedPath   Reason = "UnusedPath"
	ReasonNearness     Reason = "Nearness"
	ReasonFailBack     Reason = "FailBack"
	ReasonProbe        Reason = "FailBackProbe"
	ReasonBalance      Reason = "Balance"
)

// Urgent reports whether a move for this reason cannot wait until its LUN is calm.
func (r Reason) Urgent() bool {
	return r == ReasonDrain || r == ReasonPin || r == ReasonConnectivity
}

// Move is one decision.
type Move struct {
	LUN      string
	From, To Node
	Reason   Reason
	Text     string  // for people: what decided, with figures
	Gain     float64 // expected, in seconds of work
	Cost     float64 // expected, in seconds of work
	SetsHome bool    // the LUN belongs to To from now on
	Dry      bool    // only observed: the policy forbids it
}
