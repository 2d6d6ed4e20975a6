// Package placement decides where a LUN goes, as pure functions of what is known of the pairs. The
// same input gives the same answer. What is known may be old: the pair that is chosen has the last
// word when the LUN is made.
package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Errors of Choose. Test for them with errors.Is; the text says which pair lacks what.
var (
	// ErrNoPair: the cluster has no pair, or not the one that the LUN has to be on.
	ErrNoPair = errors.New("no pair")
	// ErrNotReady: pairs that could take it do not serve now.
	ErrNotReady = errors.New("no pair is ready")
	// ErrNoRoom: the pairs that serve are too full.
	ErrNoRoom = errors.New("no pair has room")
)

// MaxLUNs is how many LUNs a pair holds.
const MaxLUNs = 16384

// Pair is what is known of a TargetPair.
type Pair struct {
	Name, Cluster string
	Ready         bool   // it serves and can be asked for changes
	InSync        bool   // both nodes hold every acknowledged write
	Pools         []Pool // that every member has, the first one first
	LUNs          int
	Owned         map[string]int // by node: how many LUNs it owns; nil: not known
	Nodes         []Node         // sorted by name
}

// Pool is what is known of a pair's backing volumes of one kind, one on each node.
type Pool struct {
	Name     string
	Capacity int64 // bytes, of the smaller member
	Free     int64 // bytes that nothing is allocated in, on the member that has less; LUNs are thin
	Promised int64 // bytes: the sum of the sizes of the LUNs that are placed in it, written or not
	// Promisable is how many bytes may be promised; 0: it is not known, and nothing is refused for
	// it.
	Promisable int64
}

// room is how many bytes would be left if the LUNs that are placed in it were written from end to
// end, and no more than are free: below 0 where more is promised than there is.
func (x *Pool) room() int64 { return min(x.Free, x.Capacity-x.Promised) }

func (x *Pool) largest() int64 {
	if x.Promisable > 0 {
		return min(x.Free, x.Promisable-x.Promised)
	}
	return x.Free
}

// Overcommits says why so many bytes more cannot be promised; nil if they can.
func (x *Pool) Overcommits(bytes int64) error {
	if x.Promisable <= 0 || bytes <= 0 || bytes <= x.Promisable-x.Promised {
		return nil
	}
	return fmt.Errorf("%d bytes of pool %s are promised to LUNs, %d more would be more than the %d that may be promised (overcommitPercent of the pool)", x.Promised, x.Name, bytes, x.Promisable)
}

// Pool finds one by its name, nil when not every member has it; the empty name is that of the first
// one.
func (p *Pair) Pool(name string) *Pool {
	for i := range p.Pools {
		if name == "" || p.Pools[i].Name == name {
			return &p.Pools[i]
		}
	}
	return nil
}

// Request is a LUN that wants a place.
type Request struct {
	Cluster string
	Pool    string // of the cluster; empty: the first one
	Size    int64  // bytes
	// SourcePair holds what it is a copy of. Copies share extents with their source, so they are on
	// its pair and in its pool, and the pair alone can say whether there is room.
	SourcePair string
	// Consumer is the worker that the LUN is for; the zero value: it is unknown, and no pair is
	// preferred for being near.
	Consumer Location
	// Group is what the LUN becomes a member of; the LUN is not among its members. Nil: none.
	Group *Group
}

// Choice is the place of a LUN.
type Choice struct {
	Pair string
	// Home is the node of the pair, a or b, that is nearer to the consumer, or for a member of a
	// group the node that keeps the group spread. Empty: the pair chooses.
	Home string
	// Reason says in one line what has decided.
	Reason string
}

// FromObject is what a TargetPair tells; luns is how many LogicalUnits are placed on it. The labels
// of the nodes' workers are not in it.
func FromObject(p *v1alpha1.TargetPair, luns int) Pair {
	out := Pair{Name: p.Name, Cluster: p.Spec.Cluster, LUNs: max(luns, int(p.Status.LogicalUnits))}
	for _, n := range p.Spec.Nodes {
		out.Nodes = append(out.Nodes, Node{Name: n.Name, Location: Location{Worker: n.Worker}})
	}
	slices.SortFunc(out.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range p.Status.Conditions {
		switch c.Type {
		case v1alpha1.ConditionReady:
			out.Ready = c.Status == "True"
		case v1alpha1.ConditionInSync:
			out.InSync = c.Status == "True"
		}
	}
	// Being deleted, it is to lose its LUNs, not to gain some.
	out.Ready = out.Ready && p.DeletionTimestamp.IsZero()
	for _, x := range p.Status.Pools {
		if x.Capacity != nil && x.Free != nil {
			pool := Pool{Name: x.Name, Capacity: x.Capacity.Value(), Free: x.Free.Value()}
			if x.Promised != nil && x.Promisable != nil {
				pool.Promised, pool.Promisable = x.Promised.Value(), x.Promisable.Value()
			}
			out.Pools = append(out.Pools, pool)
		}
	}
	if len(p.Status.Pools) == 0 && p.Status.Capacity != nil && p.Status.Free != nil { // as an earlier release has left it
		out.Pools = []Pool{{Capacity: p.Status.Capacity.Value(), Free: p.Status.Free.Value()}}
	}
	return out
}

// Choose picks a pair that is ready and has room: one in sync before one that is not, then the one
// nearest to the consumer (its worker, its zone, its region) that keeps its Reserve, then for a
// member of a group the one with the fewest members, then the one that has promised least of the
// pool to its LUNs and has most free (Pool.room), then the fewest LUNs, then by name. Nearness and
// group are preferences: without them the same pairs can be chosen.
func Choose(pairs []Pair, req Request) (Choice, error) {
	var fit, all []Pair
	var lacks []string
	class := ErrNoPair
	for _, p := range slices.SortedFunc(slices.Values(pairs), func(a, b Pair) int { return cmp.Compare(a.Name, b.Name) }) {
		if p.Cluster != req.Cluster || req.SourcePair != "" && p.Name != req.SourcePair {
			continue
		}
		all = append(all, p)
		err := refuses(p, req)
		if err == nil {
			fit = append(fit, p)
			continue
		}
		lacks = append(lacks, p.Name+": "+err.Error())
		// A pair that is too full stays so; one that is not ready may be the next moment.
		if class != ErrNotReady {
			class = ErrNoRoom
			if errors.Is(err, ErrNotReady) {
				class = ErrNotReady
			}
		}
	}
	if p := best(fit, req, ""); p != nil {
		home, why := p.homeFor(req)
		return Choice{Pair: p.Name, Home: home, Reason: reason(*p, fit, all, req, why)}, nil
	}
	switch {
	case len(lacks) > 0:
		return Choice{}, fmt.Errorf("%w: %s", class, strings.Join(lacks, "; "))
	case req.SourcePair != "":
		return Choice{}, fmt.Errorf("%w: the source is on pair %s, which is not in cluster %s: a copy must be on the pair and in the cluster of its source", ErrNoPair, req.SourcePair, req.Cluster)
	}
	return Choice{}, fmt.Errorf("%w in cluster %s: see its StorageCluster", ErrNoPair, req.Cluster)
}

// best is the pair that a LUN should go to, except for one pair; nil if there is none.
func best(fit []Pair, req Request, except string) (out *Pair) {
	for i := range fit {
		if fit[i].Name != except && (out == nil || better(fit[i], *out, req) < 0) {
			out = &fit[i]
		}
	}
	return out
}

// better puts the pair first that a LUN should go to.
func better(a, b Pair, req Request) int {
	if a.InSync != b.InSync {
		if a.InSync {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.attraction(req), a.attraction(req)), req.Group.compare(&a, &b, req), cmp.Compare(b.room(req.Pool), a.room(req.Pool)),
		cmp.Compare(b.free(req.Pool), a.free(req.Pool)), cmp.Compare(a.LUNs, b.LUNs), cmp.Compare(a.Name, b.Name))
}

func (p *Pair) room(pool string) int64 {
	if x := p.Pool(pool); x != nil {
		return x.room()
	}
	return 0
}

func (p *Pair) free(pool string) int64 {
	if x := p.Pool(pool); x != nil {
		return x.Free
	}
	return 0
}

// refuses says what a pair lacks.
func refuses(p Pair, req Request) error {
	switch {
	case !p.Ready:
		return fmt.Errorf("%w: it does not serve", ErrNotReady)
	case p.LUNs >= MaxLUNs:
		return fmt.Errorf("it has reached its limit of %d LUNs", MaxLUNs)
	case req.SourcePair != "":
		if x := p.Pool(req.Pool); x != nil {
			return x.Overcommits(req.Size)
		}
		return nil
	case p.Pool(req.Pool) == nil:
		return fmt.Errorf("%w: its nodes do not both have a backing volume of pool %s yet: see its condition UpToDate", ErrNotReady, req.Pool)
	case p.free(req.Pool) < req.Size && req.Pool != "":
		return fmt.Errorf("%d bytes are free in pool %s, %d are required", p.free(req.Pool), req.Pool, req.Size)
	case p.free(req.Pool) < req.Size:
		return fmt.Errorf("%d bytes are free, %d are required", p.free(req.Pool), req.Size)
	}
	return p.Pool(req.Pool).Overcommits(req.Size)
}

// Largest is the size in bytes of the largest LUN that one pair of a cluster takes in a pool: of
// any cluster, and in the first pool, with an empty name. It is as much as is free there, and as
// may be promised.
func Largest(pairs []Pair, cluster, pool string) (size int64) {
	for _, p := range pairs {
		if (cluster == "" || p.Cluster == cluster) && p.Ready && p.LUNs < MaxLUNs {
			if x := p.Pool(pool); x != nil {
				size = max(size, x.largest())
			}
		}
	}
	return size
}
