package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Kind is a kind of fault, or of an operator's doing.
type Kind string

// Kinds.
const (
	Kill             Kind = "kill"              // kill -9 of process and supervisor, and a restart
	Crash            Kind = "crash"             // kill -9 of the process; its supervisor starts it again
	KillBoth         Kind = "kill both"         // both at once
	Terminate        Kind = "terminate"         // SIGTERM, and a restart
	Stop             Kind = "stop"              // SIGSTOP, later SIGCONT
	PartitionLink    Kind = "partition link"    // both ways
	PartitionOneWay  Kind = "partition one way" // what the node sends over the link is lost
	PartitionClients Kind = "partition clients" // a node and its clients
	PartitionNode    Kind = "partition node"    // from its peer and from clients
	LossLink         Kind = "loss link"         // some packets
	LossClients      Kind = "loss clients"
	ResetLink        Kind = "reset link" // connections are reset
	SlowLink         Kind = "slow link"
	FullDisk         Kind = "full disk" // of one node
	TinyDisk         Kind = "tiny disk" // a LUN that promises more than the disks have is filled
	ArbiterDown      Kind = "arbiter down"
	ArbiterSlow      Kind = "arbiter slow"  // does not answer writes for a while
	SlowDisk         Kind = "slow disk"     // of one node
	StuckDisk        Kind = "stuck disk"    // of one node, for less than Dm
	StuckDisks       Kind = "stuck disks"   // of both, for longer than Dm
	Overload         Kind = "overload"      // writes at many times what both disks take
	SqueezedDisk     Kind = "squeezed disk" // other data come and go on one node's: writes run out of space in the middle
	ReadErrors       Kind = "read errors"   // of one node's disk
	WriteErrors      Kind = "write errors"
	FlushErrors      Kind = "flush errors"
	FullPool         Kind = "full thin pool"   // writes and flushes of one node's disk fail for lack of space, where the filesystem has some
	ReplacedDisk     Kind = "replaced disk"    // of one node, which is killed before, by an empty one
	DamagedFiles     Kind = "damaged files"    // of one node, which is killed before: truncated or deleted
	MemoryPressure   Kind = "memory pressure"  // many hosts with many large commands at once
	HalfWrites       Kind = "half-sent writes" // hosts that announce large writes, send a part and hang
	Fences           Kind = "fences"           // hosts that preempt and reset each other on a LUN of their own
	IdleSockets      Kind = "idle sockets"     // connections that do not log in
	Recreate         Kind = "re-create"        // of a LUN: deleted, and made again under its uuid
	Transfer         Kind = "transfer"         // of LUNs, planned
	Drain            Kind = "drain"            // of a node: nothing moves to it for a while
	Snapshot         Kind = "snapshot"         // and a clone of it, read back
	Expand           Kind = "expand"
	DamageRunning    Kind = "damage running" // blocks of a node's images, while it runs
	DamageStopped    Kind = "damage stopped" // of a node that is killed: blocks, checksums, whole files
	DamageAlone      Kind = "damage alone"   // of a node whose peer is killed or cut off at once
)

// Kinds are all kinds.
var Kinds = []Kind{Kill, Crash, KillBoth, Terminate, Stop, PartitionLink, PartitionOneWay, PartitionClients, PartitionNode, LossLink, LossClients,
	ResetLink, SlowLink, FullDisk, TinyDisk, ArbiterDown, ArbiterSlow, SlowDisk, StuckDisk, StuckDisks, Overload, SqueezedDisk, ReadErrors, WriteErrors, FlushErrors, FullPool,
	ReplacedDisk, DamagedFiles, MemoryPressure, HalfWrites, Fences, IdleSockets, Recreate, Transfer, Drain, Snapshot, Expand, DamageRunning, DamageStopped, DamageAlone}

// damage are the kinds that damage blocks behind a node's back; damageName names them all.
var damage = []Kind{DamageRunning, DamageStopped, DamageAlone}

const damageName = "damage"

// ParseKinds reads a comma-separated list; empty: all.
func ParseKinds(s string) ([]Kind, error) {
	if s == "" {
		return Kinds, nil
	}
	var out []Kind
	for _, f := range strings.Split(s, ",") {
		k := Kind(strings.TrimSpace(f))
		if k == damageName {
			out = append(out, damage...)
			continue
		}
		if !slices.Contains(Kinds, k) {
			return nil, fmt.Errorf("there is no fault %q; there are %q", k, Kinds)
		}
		out = append(out, k)
	}
	return out, nil
}

// Fault is one fault of an episode.
type Fault struct {
	Kind Kind
	Node int           // 0 or 1; of ArbiterDown 2 means both
	At   time.Duration // since the episode began
	For  time.Duration
	N    int // what else has to be drawn: percent, kilobits, which LUN
}

func (f Fault) String() string {
	node := "both"
	if f.Node < len(harness.Names) {
		node = harness.Names[f.Node]
	}
	return fmt.Sprintf("%s %s +%v for %v (%d)", f.Kind, node, f.At.Round(time.Millisecond), f.For.Round(time.Millisecond), f.N)
}

// Episode is one or more faults, all of which end with it.
type Episode struct {
	Faults []Fault
	// Patient: the pair is in sync again before the next episode begins. Else that comes after
	// Rest.
	Patient bool
	Rest    time.Duration
	// Whole: the pair must be in sync before it begins, whatever the last one left.
	Whole bool
}

func (e Episode) String() string {
	var s []string
	for _, f := range e.Faults {
		s = append(s, f.String())
	}
	return strings.Join(s, ", ")
}

// still tells that all of an episode is what no node may leave for.
func (e Episode) still() bool {
	return len(e.Faults) == 1 && slices.Contains([]Kind{Overload, StuckDisks, MemoryPressure, HalfWrites}, e.Faults[0].Kind)
}

// damages tells that an episode damages blocks.
func (e Episode) damages() (Fault, bool) {
	for _, f := range e.Faults {
		if slices.Contains(damage, f.Kind) {
			return f, true
		}
	}
	return Fault{}, false
}

// label names an episode by its kinds.
func (e Episode) label() string {
	var s []string
	for _, f := range e.Faults {
		s = append(s, string(f.Kind))
	}
	slices.Sort(s)
	return strings.Join(s, " + ")
}

// longHang: one in so many crowds of half-sent writes stays until it is sent away.
const longHang = 8

// plan draws episodes from a seed, and from nothing else: the same seed gives the same ones.
type plan struct {
	rng   *rand.Rand
	kinds []Kind
	bag   []Kind // what is left of the present round: every kind comes in each
}

func newPlan(seed uint64, kinds []Kind) *plan {
	return &plan{rng: rand.New(rand.NewPCG(seed, 0x6368616f73)), kinds: kinds}
}

func (p *plan) next() Episode {
	if len(p.bag) == 0 {
		p.bag = slices.Clone(p.kinds)
		if slices.Contains(p.kinds, Kill) { // what matters most comes most often
			p.bag = append(p.bag, Kill, Kill)
		}
		p.rng.Shuffle(len(p.bag), func(i, j int) { p.bag[i], p.bag[j] = p.bag[j], p.bag[i] })
	}
	k := p.bag[0]
	p.bag = p.bag[1:]
	e := Episode{Faults: []Fault{p.fault(k)}, Patient: p.rng.IntN(10) < 7, Rest: p.span(0, 800*time.Millisecond)}
	if p.rng.IntN(3) == 0 {
		f := p.fault(p.kinds[p.rng.IntN(len(p.kinds))])
		f.At = p.span(0, 1200*time.Millisecond)
		if goTogether(f.Kind, k) {
			e.Faults = append(e.Faults, f)
		}
	}
	e.Whole = e.still() // neither node may leave
	for _, f := range e.Faults {
		e.Whole = e.Whole || slices.Contains(spoiling, f.Kind)     // the other node has to have everything
		e.Patient = e.Patient || slices.Contains(spoiling, f.Kind) // and so has this one before that one may fail
	}
	e.Whole = e.Whole || k == Kill && len(e.Faults) == 1 && p.rng.IntN(3) > 0 // the pause of these is what is promised
	return e
}

func (p *plan) span(from, to time.Duration) time.Duration {
	return from + time.Duration(p.rng.Int64N(int64(to-from)))
}

// fault draws the particulars of a kind.
func (p *plan) fault(k Kind) Fault {
	f := Fault{Kind: k, Node: p.rng.IntN(2), For: p.span(300*time.Millisecond, 2500*time.Millisecond), N: p.rng.IntN(1000)}
	switch k {
	case Stop:
		f.For = p.span(100*time.Millisecond, 4*time.Second)
	case ArbiterDown:
		f.Node = p.rng.IntN(3)
	case LossLink, LossClients:
		f.N = 5 + f.N%26 // percent
	case SlowLink:
		f.N = 500 + 4*f.N // kilobits per second
	case ResetLink:
		f.For = p.span(20*time.Millisecond, 200*time.Millisecond)
	case DamageRunning:
		f.For = p.span(500*time.Millisecond, 3*time.Second)
	case StuckDisk:
		f.For = p.span(200*time.Millisecond, 3500*time.Millisecond)
	case StuckDisks:
		f.Node, f.For = len(harness.Names), p.span(500*time.Millisecond, 9*time.Second)
	case Overload:
		f.Node, f.For = len(harness.Names), p.span(6*time.Second, 15*time.Second)
	case MemoryPressure:
		f.Node, f.For = len(harness.Names), p.span(2*time.Second, 6*time.Second)
	case HalfWrites:
		f.Node, f.For = len(harness.Names), p.span(time.Second, 5*time.Second)
		if f.N%longHang == 0 {
			f.For += 22 * time.Second // longer than a target waits for data that others' commands need the memory of
		}
	case SqueezedDisk:
		f.For = p.span(time.Second, 4*time.Second)
	case ArbiterSlow:
		f.For = p.span(100*time.Millisecond, 3*time.Second)
	}
	return f
}
