package groups

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/placement"
)

const randomClusters = 1000

// cluster is pairs at random, of which some are full, behind, or not ready.
type cluster struct {
	r     *rand.Rand
	pairs []placement.Pair
	pool  string
	near  bool // claims have a first consumer
	open  map[string]bool
}

func randomCluster(r *rand.Rand) *cluster {
	c := &cluster{r: r, pool: []string{"", "slow"}[r.IntN(2)], near: r.IntN(3) == 0, open: map[string]bool{}}
	for i := range 1 + r.IntN(8) {
		p := placement.Pair{Name: fmt.Sprintf("c-p%d", i), Cluster: "c", Ready: r.IntN(20) > 0, InSync: r.IntN(10) > 0, LUNs: r.IntN(50), Owned: map[string]int{"a": r.IntN(30), "b": r.IntN(30)}}
		for k, n := range []string{"a", "b"} {
			p.Nodes = append(p.Nodes, placement.Node{Name: n, Location: placement.Location{Worker: fmt.Sprintf("w%d", 2*i+k)}})
		}
		for _, name := range []string{"fast", "slow"} {
			capacity := (1 + r.Int64N(64)) << 36
			p.Pools = append(p.Pools, placement.Pool{Name: name, Capacity: capacity, Free: r.Int64N(capacity + 1)})
		}
		c.pairs, c.open[p.Name] = append(c.pairs, p), p.Ready && p.InSync
	}
	return c
}

// add places one more claim of a group. Pairs that lack room for it are out of the comparison.
func (c *cluster) add(members []placement.Member) (placement.Member, bool) {
	req := placement.Request{Cluster: "c", Pool: c.pool, Size: (1 + c.r.Int64N(256)) << 30, Group: &placement.Group{Name: "team/db", Members: members}}
	if c.near {
		req.Consumer.Worker = fmt.Sprintf("w%d", c.r.IntN(2*len(c.pairs)+1))
	}
	for i := range c.pairs {
		x := c.pairs[i].Pool(c.pool)
		c.open[c.pairs[i].Name] = c.open[c.pairs[i].Name] && x.Free-req.Size >= x.Capacity/100*placement.Reserve+placement.Reserve
	}
	at, err := placement.Choose(c.pairs, req)
	if err != nil {
		return placement.Member{}, false
	}
	p := &c.pairs[slices.IndexFunc(c.pairs, func(p placement.Pair) bool { return p.Name == at.Pair })]
	p.Pool(c.pool).Free -= req.Size
	p.LUNs++
	p.Owned[at.Home]++
	return placement.Member{Name: fmt.Sprintf("d%03d", len(members)), Pair: at.Pair, Home: at.Home, Owner: at.Home}, true
}

// apart is by how many members the pairs differ that had room for each of them.
func (c *cluster) apart(members []placement.Member) int {
	least, most := -1, -1
	for name, open := range c.open {
		if !open {
			continue
		}
		n := 0
		for _, m := range members {
			if m.Pair == name {
				n++
			}
		}
		if least < 0 || n < least {
			least = n
		}
		most = max(most, n)
	}
	return most - least
}

// disturb does what happens to a group: claims go, nodes fail, people pin.
func (c *cluster) disturb(members []placement.Member) []placement.Member {
	members = slices.DeleteFunc(slices.Clone(members), func(placement.Member) bool { return c.r.IntN(4) == 0 })
	for i := range members {
		m := &members[i]
		switch c.r.IntN(6) {
		case 0:
			m.Owner = "a"
		case 1:
			m.Owner = "b"
		case 2:
			m.Fixed, m.Home = "it is pinned", []string{"a", "b"}[c.r.IntN(2)]
		}
	}
	return members
}

// fullest reports the node of a pair with more members, and whether one of them can be moved.
func fullest(n placement.Count, members []placement.Member) (movable bool) {
	from := "a"
	if n.B > n.A {
		from = "b"
	}
	return slices.ContainsFunc(members, func(m placement.Member) bool { return m.Pair == n.Pair && m.Home == from && m.Fixed == "" })
}

// Groups and striped volumes are spread within one LUN, over the pairs that have room and over the
// nodes of each, and nothing moves that need not: a new member moves none of the others, and what
// is uneven after claims have gone, nodes have failed and people have pinned is evened out with the
// fewest moves, once.
func TestSpreadInRandomClusters(t *testing.T) {
	r := rand.New(rand.NewPCG(*seed, 19))
	worst, needless, placed, moved := 0, 0, 0, 0
	nodes := func(members []placement.Member) {
		for _, n := range placement.Counts(members) {
			if d := max(n.A-n.B, n.B-n.A); d > 1 && fullest(n, members) {
				worst = max(worst, d)
			}
		}
	}
	for range randomClusters {
		c := randomCluster(r)
		var members []placement.Member
		for range 2 + r.IntN(40) {
			m, ok := c.add(members)
			if !ok {
				continue
			}
			members, placed = append(members, m), placed+1
			needless += len(placement.EvenOut(members))
			nodes(members)
			if !c.near { // else a near pair comes first
				worst = max(worst, c.apart(members))
			}
		}
		members = c.disturb(members)
		moves := placement.EvenOut(members)
		least := 0
		for _, n := range placement.Counts(members) {
			least += max(n.A-n.B, n.B-n.A) / 2
		}
		needless += max(len(moves)-least, 0)
		moved += len(moves)
		for _, m := range moves {
			i := slices.IndexFunc(members, func(x placement.Member) bool { return x.Name == m.Name })
			members[i].Home, members[i].Owner = m.To, m.To
		}
		nodes(members)
		needless += len(placement.EvenOut(members))
	}
	for _, first := range []string{"", "a", "b"} {
		for count := 2; count <= 16; count++ {
			for pairs := 1; pairs <= count; pairs++ {
				legs := stripedOver(t, first, count, pairs)
				nodes(legs)
				worst = max(worst, apart(legs, pairs))
				needless += len(placement.EvenOut(legs))
			}
		}
	}
	figures.set("clusters", randomClusters)
	figures.set("max_imbalance", worst)
	figures.set("needless_moves", needless)
	t.Logf("%d LUNs placed, %d moved; max_imbalance %d, needless_moves %d", placed, moved, worst, needless)
	if placed < 10*randomClusters || moved < randomClusters/2 {
		t.Errorf("only %d LUNs were placed and %d moved", placed, moved)
	}
	if worst > 1 || needless > 0 {
		t.Errorf("max_imbalance %d, needless_moves %d", worst, needless)
	}
}

// stripedOver are the legs of a striped volume on so many pairs: on one, or spread over all.
func stripedOver(t *testing.T, first string, count, pairs int) (legs []placement.Member) {
	t.Helper()
	var on []string
	if pairs > 1 {
		var all []placement.Pair
		for i := range pairs {
			all = append(all, placement.Pair{Name: fmt.Sprintf("p%02d", i), Ready: true, InSync: true, Pools: []placement.Pool{{Capacity: 1 << 40, Free: 1 << 39}}})
		}
		var err error
		if _, on, err = placement.Legs(all, placement.Request{Size: 1 << 30}, count); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count {
		m := placement.Member{Name: fmt.Sprint(i), Pair: "p", Home: placement.LegHome(first, on, i)}
		if len(on) > 0 {
			m.Pair = on[i]
		}
		legs = append(legs, m)
	}
	return legs
}

// apart is how many legs the pair with the most has more than the one with the fewest.
func apart(legs []placement.Member, pairs int) int {
	var n []int
	for _, c := range placement.Counts(legs) {
		n = append(n, c.A+c.B)
	}
	n = append(n, make([]int, pairs-len(n))...)
	return slices.Max(n) - slices.Min(n)
}
