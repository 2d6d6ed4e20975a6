package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The nodes of a pair.
const (
	nodeA = "a"
	nodeB = "b"
)

// Group is a consistency group: its members are spread over the pairs, and on each pair over both
// nodes, so that no node has two members more than the other one.
type Group struct {
	Name    string // namespace/name
	Members []Member
}

// Member is a LUN of a group that has a place.
type Member struct {
	Name  string // of its claim
	Pair  string
	Home  string // a or b, where the LUN belongs; empty: it is not known yet
	Owner string // a or b; empty: it is not known yet
	// Fixed is why the home is not changed: a pin, a preferred node, a transfer by a person. The
	// member counts all the same. Empty: the home can be changed.
	Fixed string
}

// Count is how many members of a group have their home on each node of a pair.
type Count struct {
	Pair string
	A, B int
}

// Counts returns the counts of all pairs that have a member with a known home, by name.
func Counts(members []Member) (out []Count) {
	for _, m := range members {
		if m.Home != nodeA && m.Home != nodeB {
			continue
		}
		i, ok := slices.BinarySearchFunc(out, m.Pair, func(c Count, pair string) int { return cmp.Compare(c.Pair, pair) })
		if !ok {
			out = slices.Insert(out, i, Count{Pair: m.Pair})
		}
		*out[i].at(m.Home)++
	}
	return out
}

// of the pair are the counts of one pair.
func of(pair string, members []Member) Count {
	for _, c := range Counts(members) {
		if c.Pair == pair {
			return c
		}
	}
	return Count{Pair: pair}
}

func (c *Count) at(node string) *int {
	if node == nodeB {
		return &c.B
	}
	return &c.A
}

// String is "a: 2, b: 1".
func (c Count) String() string { return fmt.Sprintf("a: %d, b: %d", c.A, c.B) }

// apart is by how many members the nodes differ.
func (c Count) apart() int { return max(c.A-c.B, c.B-c.A) }

// Even reports whether the pair is balanced within one member.
func (c Count) Even() bool { return c.apart() <= 1 }

// Move is a change of the home of a member.
type Move struct {
	Member
	To     string
	Reason string
}

// EvenOut returns the moves after which every pair is balanced within one member, or has no member
// left on the fuller node that can be moved; none for a pair that is balanced already. They are the
// fewest: half of the difference. On each pair those members move first that the other node owns
// already, because nothing but their home changes, then the last ones by name: so those that joined
// a set of numbered claims first stay where they are. The order of members does not matter.
func EvenOut(members []Member) (out []Move) {
	for _, c := range Counts(members) {
		from, to := nodeA, nodeB
		if c.B > c.A {
			from, to = nodeB, nodeA
		}
		var can []Member
		for _, m := range members {
			if m.Pair == c.Pair && m.Home == from && m.Fixed == "" {
				can = append(can, m)
			}
		}
		slices.SortFunc(can, func(x, y Member) int {
			return cmp.Or(first(x.Owner == to, y.Owner == to), cmp.Compare(y.Name, x.Name))
		})
		for _, m := range can[:min(len(can), c.apart()/2)] {
			out = append(out, Move{m, to, fmt.Sprintf("%d members of the group have their home on node %s of pair %s, and %d on node %s",
				*c.at(from), from, c.Pair, *c.at(to), to)})
		}
	}
	return out
}

// first puts what is true before what is not.
func first(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// Why says why the home of a member is where it is.
func Why(m Member, members []Member) string {
	switch c := of(m.Pair, members); {
	case m.Home == "" && m.Fixed != "":
		return m.Fixed
	case m.Home == "":
		return "its home is not known yet"
	case m.Fixed != "":
		return m.Fixed + ", and the group does not change that"
	case c.Even():
		return fmt.Sprintf("spread over the nodes of pair %s (%s)", m.Pair, c)
	default:
		return fmt.Sprintf("not spread over the nodes of pair %s (%s)", m.Pair, c)
	}
}

// Follows reports whether the home of a member may follow its consumer to a node: afterwards its
// pair is balanced within one member, or no less balanced than before.
func (g *Group) Follows(member, node string) bool {
	i := slices.IndexFunc(g.Members, func(m Member) bool { return m.Name == member })
	if i < 0 {
		return true
	}
	before := of(g.Members[i].Pair, g.Members)
	moved := slices.Clone(g.Members)
	moved[i].Home = node
	after := of(moved[i].Pair, moved)
	return after.Even() || after.apart() <= before.apart()
}

// on is how many members are on a pair, whether or not their homes are known.
func (g *Group) on(pair string) (n int) {
	for _, m := range g.Members {
		if m.Pair == pair {
			n++
		}
	}
	return n
}

// compare puts the pair first that a new member should go to: the one that keeps its Reserve, then
// the one with fewer members. Without a group, and for a copy, which has one pair only, all pairs
// are equal.
func (g *Group) compare(a, b *Pair, req Request) int {
	if g == nil || req.SourcePair != "" {
		return 0
	}
	return cmp.Or(first(a.keepsReserve(req), b.keepsReserve(req)), cmp.Compare(g.on(a.Name), g.on(b.Name)))
}

// decided is why a pair comes before another one that compare puts behind it.
func (g *Group) decided(chosen, next *Pair, req Request) string {
	if chosen.keepsReserve(req) != next.keepsReserve(req) {
		return fmt.Sprintf("is the only one that keeps %d %% of its pool free", Reserve)
	}
	return "has the fewest members of ConsistencyGroup " + g.Name
}

// home of a new member on a pair: the node with fewer members; with as many on both, the node that
// is nearer to the consumer, then the one that owns fewer LUNs, then node a.
func (g *Group) home(p *Pair, consumer Location) (home, reason string) {
	c, near := of(p.Name, g.Members), p.home(consumer)
	switch {
	case c.A != c.B:
		home = nodeA
		if c.B < c.A {
			home = nodeB
		}
		reason = fmt.Sprintf("node %s has fewer members of ConsistencyGroup %s (%s) and becomes the home", home, g.Name, c)
		if near != "" && near != home {
			reason += ", although node " + near + " is " + consumer.place(p.nearest(consumer))
		}
		return home, reason
	case near != "":
		home, reason = near, "is "+consumer.place(p.nearest(consumer))
	case p.Owned[nodeA] != p.Owned[nodeB]:
		home, reason = nodeA, "owns fewer LUNs"
		if p.Owned[nodeB] < p.Owned[nodeA] {
			home = nodeB
		}
	default:
		home, reason = nodeA, "is the first one"
	}
	return home, fmt.Sprintf("both nodes have as many members of ConsistencyGroup %s (%s); node %s %s and becomes the home", g.Name, c, home, reason)
}

// maxPairs is how many pairs Balance names.
const maxPairs = 16

// Balance describes where the members of a group have their homes: "a: 2, b: 1" on one pair, with
// the names of the pairs on several.
func Balance(members []Member) string {
	counts := Counts(members)
	if len(counts) == 1 {
		return counts[0].String()
	}
	var parts []string
	for _, c := range counts[:min(len(counts), maxPairs)] {
		parts = append(parts, c.Pair+" "+c.String())
	}
	if n := len(counts) - maxPairs; n > 0 {
		parts = append(parts, fmt.Sprintf("and %d more pairs", n))
	}
	return strings.Join(parts, "; ")
}
