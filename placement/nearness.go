package placement

import (
	"fmt"
	"strings"
)

// Labels of workers that are compared; Kubernetes has given them their meaning.
const (
	labelZone   = "topology.kubernetes.io/zone"
	labelRegion = "topology.kubernetes.io/region"
)

// Location of a node of a pair or of a consumer: its worker, and the labels of that worker. Both
// may be unknown: then nothing is near. A consumer without a worker is any of the workers with the
// labels.
type Location struct {
	Worker string
	Labels map[string]string
}

// Node is one node of a pair.
type Node struct {
	Name string // a or b
	Location
}

// Reserve is how much of a pool, in percent, has to stay free on a pair for its nearness to count,
// as if the new LUN were full. Without it one pair would be filled completely while others, one
// network hop away, are empty: then all LUNs of the pair can no longer grow.
const Reserve = 10

// nearness of two locations; the higher value is nearer.
type nearness int

const (
	anywhere nearness = iota
	sameRegion
	sameZone
	sameWorker
)

// near compares two locations.
func near(a, b Location) nearness {
	zone, region := compare(a, b, labelZone), compare(a, b, labelRegion)
	switch {
	case a.Worker != "" && a.Worker == b.Worker:
		return sameWorker
	case zone == equal && region != different: // two regions may name their zones alike
		return sameZone
	case region == equal:
		return sameRegion
	}
	return anywhere
}

// match of a label of two locations.
type match int

const (
	unknown match = iota // one of them has no such label
	different
	equal
)

func compare(a, b Location, label string) match {
	switch x, y := a.Labels[label], b.Labels[label]; {
	case x == "" || y == "":
		return unknown
	case x == y:
		return equal
	}
	return different
}

// Known reports whether there is a consumer to be near to.
func (l Location) Known() bool { return l.Worker != "" || len(l.Labels) > 0 }

// String names the consumer in a reason.
func (l Location) String() string {
	if l.Worker == "" {
		return "the workers that may use it"
	}
	return "worker " + l.Worker
}

// place is what two locations of this nearness have in common, as a part of a sentence.
func (l Location) place(n nearness) string {
	switch n {
	case sameWorker:
		return "on " + l.String()
	case sameZone:
		return "in zone " + l.Labels[labelZone]
	case sameRegion:
		return "in region " + l.Labels[labelRegion]
	}
	return "elsewhere"
}

// nearest is the nearness of the node of the pair that is nearest to the consumer.
func (p *Pair) nearest(consumer Location) (n nearness) {
	for _, x := range p.Nodes {
		n = max(n, near(x.Location, consumer))
	}
	return n
}

// attraction is the nearness that counts for the choice of the pair.
func (p *Pair) attraction(req Request) nearness {
	if !p.keepsReserve(req) {
		return anywhere
	}
	return p.nearest(req.Consumer)
}

// keepsReserve reports whether the pool keeps its reserve with the new LUN. A copy has no other
// pair to go to.
func (p *Pair) keepsReserve(req Request) bool {
	x := p.Pool(req.Pool)
	return req.SourcePair != "" || x != nil && x.Free-req.Size >= x.Capacity/100*Reserve+x.Capacity%100*Reserve/100 // in parts, against overflow
}

// home is the node that is nearer to the consumer than the other one; empty if there is none.
func (p *Pair) home(consumer Location) string {
	home, _ := p.Nearer(consumer)
	return home
}

// Nearer is the node that is nearer to the consumer than the other one, and what it has in common
// with it: worker, zone or region. Empty if both are equally near.
func (p *Pair) Nearer(consumer Location) (node, by string) {
	best := anywhere
	for _, x := range p.Nodes {
		switch n := near(x.Location, consumer); {
		case n > best:
			node, best = x.Name, n
		case n == best:
			node = ""
		}
	}
	if node == "" {
		return "", ""
	}
	return node, [...]string{sameRegion: "region", sameZone: "zone", sameWorker: "worker"}[best]
}

// homeFor is the home of a new LUN on the pair, and why; both may be empty.
func (p *Pair) homeFor(req Request) (home, why string) {
	if req.Group != nil {
		return req.Group.home(p, req.Consumer)
	}
	switch home := p.home(req.Consumer); {
	case home != "":
		return home, "its node " + home + " is " + req.Consumer.place(p.nearest(req.Consumer)) + " and becomes the home"
	case req.Consumer.Known():
		return "", "its nodes are equally near, and it chooses the home"
	}
	return "", ""
}

// reason says in one line what has decided: for the pair, for a nearer pair that was passed over,
// and for the home. fit are the pairs that could be chosen, all those of the cluster.
func reason(chosen Pair, fit, all []Pair, req Request, home string) string {
	parts := []string{"pair " + chosen.Name + " " + decided(chosen, fit, req)}
	n := chosen.nearest(req.Consumer)
	if over, why := passedOver(chosen, all, req); over != nil {
		parts = append(parts, fmt.Sprintf("pair %s is nearer (%s), but %s", over.Name, req.Consumer.place(over.nearest(req.Consumer)), why))
	} else if n == anywhere && req.Consumer.Known() && req.SourcePair == "" {
		parts = append(parts, "no pair is near "+req.Consumer.String())
	}
	if home != "" {
		parts = append(parts, home)
	}
	return strings.Join(parts, "; ")
}

// decided is what has put a pair before the next best one, in the order of better.
func decided(chosen Pair, fit []Pair, req Request) string {
	if req.SourcePair != "" {
		return "has the source of the copy"
	}
	var where string
	if n := chosen.nearest(req.Consumer); n > anywhere {
		where = "has a node " + req.Consumer.place(n)
		if n < sameWorker {
			where += ", as " + req.Consumer.String()
		}
	}
	next := best(fit, req, chosen.Name)
	var by string
	switch {
	case next == nil:
		by = "is the only one that is ready and has room"
	case next.InSync != chosen.InSync:
		by = "is the only one with room whose nodes are in sync"
	case next.attraction(req) != chosen.attraction(req):
		return where
	case req.Group.compare(&chosen, next, req) != 0:
		by = req.Group.decided(&chosen, next, req)
	case next.room(req.Pool) != chosen.room(req.Pool) && (next.room(req.Pool) < next.free(req.Pool) || chosen.room(req.Pool) < chosen.free(req.Pool)):
		by = "has the most space that is free and not promised to LUNs"
	case next.free(req.Pool) != chosen.free(req.Pool):
		by = "has the most free space"
	case next.LUNs != chosen.LUNs:
		by = "has the fewest LUNs"
	default:
		by = "is the first of equal pairs by name"
	}
	if where == "" {
		return by
	}
	return where + " and " + by
}

// passedOver is the nearest pair that is nearer than the chosen one, and why it was not chosen.
func passedOver(chosen Pair, all []Pair, req Request) (over *Pair, why string) {
	n := chosen.nearest(req.Consumer)
	for i := range all {
		if x := all[i].nearest(req.Consumer); x > n {
			over, n = &all[i], x
		}
	}
	switch {
	case over == nil:
		return nil, ""
	case req.SourcePair != "":
		return nil, ""
	}
	if err := refuses(*over, req); err != nil {
		return over, strings.TrimPrefix(err.Error(), ErrNotReady.Error()+": ")
	}
	if !over.InSync && chosen.InSync {
		return over, "its nodes are not in sync"
	}
	return over, fmt.Sprintf("less than %d %% of its pool would stay free", Reserve)
}
