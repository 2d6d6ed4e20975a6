package placement

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func member(name, pair, home string, change ...func(*Member)) Member {
	m := Member{Name: name, Pair: pair, Home: home, Owner: home}
	for _, f := range change {
		f(&m)
	}
	return m
}

func fixed(m *Member)    { m.Fixed = "it is pinned to node " + m.Home }
func ownedByB(m *Member) { m.Owner = "b" }

func inGroup(req Request, members ...Member) Request {
	req.Group = &Group{Name: "team/db", Members: members}
	return req
}

func TestEvenOut(t *testing.T) {
	for name, c := range map[string]struct {
		members []Member
		want    string // claims that move, and where to
	}{
		"none":                {nil, ""},
		"one":                 {[]Member{member("d0", "p", "a")}, ""},
		"one more":            {[]Member{member("d0", "p", "a"), member("d1", "p", "a"), member("d2", "p", "b")}, ""},
		"two on one node":     {[]Member{member("d0", "p", "b"), member("d1", "p", "b")}, "d1→a"},
		"the last by name":    {[]Member{member("d3", "p", "a"), member("d0", "p", "a"), member("d1", "p", "a"), member("d2", "p", "a")}, "d3→b d2→b"},
		"what is owned there": {[]Member{member("d0", "p", "a", ownedByB), member("d1", "p", "a"), member("d2", "p", "a")}, "d0→b"},
		"not a fixed one":     {[]Member{member("d0", "p", "a"), member("d1", "p", "a", fixed)}, "d0→b"},
		"all are fixed":       {[]Member{member("d0", "p", "a", fixed), member("d1", "p", "a", fixed)}, ""},
		"as many as can":      {[]Member{member("d0", "p", "a", fixed), member("d1", "p", "a", fixed), member("d2", "p", "a", fixed), member("d3", "p", "a"), member("d4", "p", "a", fixed)}, "d3→b"},
		"each pair by itself": {[]Member{member("d0", "p", "a"), member("d1", "q", "a")}, ""},
		"several pairs":       {[]Member{member("d0", "q", "b"), member("d1", "p", "a"), member("d2", "q", "b"), member("d3", "p", "a")}, "d3→b d2→a"},
		"no home yet":         {[]Member{member("d0", "p", "a"), member("d1", "p", "a"), member("d2", "p", "")}, "d1→b"},
	} {
		var got []string
		for _, m := range EvenOut(c.members) {
			got = append(got, m.Name+"→"+m.To)
			if !strings.Contains(m.Reason, "members of the group have their home on node "+m.Home+" of pair "+m.Pair) {
				t.Errorf("%s: %q", name, m.Reason)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func randomMembers(r *rand.Rand, n int) (out []Member) {
	node := func() string { return []string{"a", "b", "a", "b", ""}[r.IntN(5)] }
	for i := range n {
		m := Member{Name: fmt.Sprintf("d%02d", i), Pair: string(rune('p' + r.IntN(3))), Home: node(), Owner: node()}
		if m.Home != "" && r.IntN(4) == 0 {
			fixed(&m)
		}
		out = append(out, m)
	}
	return out
}

// Whatever the members are: what is fixed never moves, a balanced pair changes nothing, afterwards
// every pair is balanced or its fuller node has only fixed members left, no move is superfluous,
// the order of the members does not matter, and to even out a second time changes nothing.
func TestEvenOutPropertiesForRandomMembers(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	moved, stuck := 0, 0
	for range 20000 {
		members := randomMembers(r, r.IntN(14))
		before := slices.Clone(members)
		moves := EvenOut(members)
		if !reflect.DeepEqual(members, before) {
			t.Fatal("the members were changed")
		}
		mixed := slices.Clone(members)
		r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		if again := EvenOut(mixed); !reflect.DeepEqual(again, moves) {
			t.Fatalf("%v: %v, in another order %v", members, moves, again)
		}
		perPair := map[string]int{}
		after := slices.Clone(members)
		for _, m := range moves {
			i := slices.IndexFunc(after, func(x Member) bool { return x.Name == m.Name })
			if m.Fixed != "" || m.To == m.Home || after[i].Home != m.Home {
				t.Fatalf("%v: %+v", members, m)
			}
			after[i].Home, after[i].Owner = m.To, m.To
			perPair[m.Pair]++
			moved++
		}
		for _, c := range Counts(members) {
			if perPair[c.Pair] > c.apart()/2 {
				t.Fatalf("%v: %d moves for %s", members, perPair[c.Pair], c)
			}
		}
		for _, c := range Counts(after) {
			if c.Even() {
				continue
			}
			stuck++
			from := "a"
			if c.B > c.A {
				from = "b"
			}
			if slices.ContainsFunc(after, func(m Member) bool { return m.Pair == c.Pair && m.Home == from && m.Fixed == "" }) {
				t.Fatalf("%v: %s stays %s", members, c.Pair, c)
			}
		}
		if again := EvenOut(after); len(again) != 0 {
			t.Fatalf("%v: then %v", members, again)
		}
	}
	if moved < 5000 || stuck < 100 {
		t.Errorf("%d moves, %d pairs stuck: the members are not random enough", moved, stuck)
	}
}

// A group that grows is spread at every moment over the pairs that have room and over their nodes,
// and no member moves because of a new one.
func TestGroupThatGrowsStaysSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 500 {
		var pairs []Pair
		for i := range 1 + r.IntN(3) {
			pairs = append(pairs, pair(string(rune('p'+i)), free(int64(3+r.IntN(6))*gib), luns(r.IntN(5)), nodes(at("w1", "z1", "r"), at("w2", "z2", "r")),
				func(p *Pair) { p.Owned = map[string]int{"a": r.IntN(3), "b": r.IntN(3)} }))
		}
		req := inGroup(ask(gib / 8))
		if r.IntN(2) == 0 {
			req.Consumer = at("w9", fmt.Sprint("z", r.IntN(4)), "r")
		}
		for i := range 20 {
			got, err := Choose(pairs, req)
			if err != nil || got.Home == "" || !strings.Contains(got.Reason, "ConsistencyGroup team/db") {
				t.Fatalf("%+v, %v", got, err)
			}
			mixed := slices.Clone(pairs)
			slices.Reverse(mixed)
			if again, _ := Choose(mixed, req); again != got {
				t.Fatalf("%+v, in another order %+v", got, again)
			}
			req.Group.Members = append(req.Group.Members, member(fmt.Sprintf("d%02d", i), got.Pair, got.Home))
			if moves := EvenOut(req.Group.Members); len(moves) != 0 {
				t.Fatalf("%v: %v", req.Group.Members, moves)
			}
			low, high := i+1, 0
			for _, p := range pairs {
				low, high = min(low, req.Group.on(p.Name)), max(high, req.Group.on(p.Name))
			}
			if high-low > 1 {
				t.Fatalf("%v: %d and %d members on a pair", req.Group.Members, low, high)
			}
		}
	}
}

func TestChooseForAGroup(t *testing.T) {
	own := nodes(at("w1", "z1", "r"), at("w2", "z2", "r"))
	owned := func(a, b int) func(*Pair) { return func(p *Pair) { p.Owned = map[string]int{"a": a, "b": b} } }
	two := []Member{member("d0", "p", "a"), member("d1", "p", "b")}
	w1 := forWorker("w1", "z1", "r")
	for name, c := range map[string]struct {
		pairs      []Pair
		req        Request
		pair, home string
		says       []string
	}{
		"first member":          {[]Pair{pair("p")}, inGroup(ask(gib)), "p", "a", says("both nodes have as many members of ConsistencyGroup team/db (a: 0, b: 0)", "node a is the first one")},
		"owns fewer":            {[]Pair{pair("p", owned(3, 2))}, inGroup(ask(gib)), "p", "b", says("node b owns fewer LUNs")},
		"owns fewer, a":         {[]Pair{pair("p", owned(1, 2))}, inGroup(ask(gib)), "p", "a", says("node a owns fewer LUNs")},
		"near, if it is free":   {[]Pair{pair("p", own, owned(3, 2))}, inGroup(w1, two...), "p", "a", says("(a: 1, b: 1); node a is on worker w1 and becomes the home")},
		"spread before near":    {[]Pair{pair("p", own)}, inGroup(w1, two[0]), "p", "b", says("node b has fewer members of ConsistencyGroup team/db (a: 1, b: 0)", "although node a is on worker w1")},
		"alternates":            {[]Pair{pair("p")}, inGroup(ask(gib), two[0]), "p", "b", says("node b has fewer")},
		"alternates, back":      {[]Pair{pair("p", owned(9, 0))}, inGroup(ask(gib), two[1]), "p", "a", says("node a has fewer")},
		"fewest members":        {[]Pair{pair("p", free(9*gib)), pair("q")}, inGroup(ask(gib), two...), "q", "a", says("pair q has the fewest members of ConsistencyGroup team/db")},
		"no home yet counts":    {[]Pair{pair("p", free(9*gib)), pair("q")}, inGroup(ask(gib), member("d0", "p", "")), "q", "a", says("fewest members")},
		"near before members":   {[]Pair{pair("p", own), pair("q")}, inGroup(w1, two...), "p", "a", says("on worker w1")},
		"in sync before":        {[]Pair{pair("p"), pair("q", alone)}, inGroup(ask(gib), two...), "p", "a", says("in sync")},
		"room before":           {[]Pair{pair("p"), pair("q", free(gib-1))}, inGroup(ask(gib), two...), "p", "a", says("only one that is ready")},
		"reserve before":        {[]Pair{pair("p"), pair("q", free(2*gib-1))}, inGroup(ask(gib), two...), "p", "a", says("is the only one that keeps 10 % of its pool free")},
		"as many on both pairs": {[]Pair{pair("p"), pair("q", free(6*gib))}, inGroup(ask(gib), two[0], member("d1", "q", "a")), "q", "b", says("most free space")},
		"copy":                  {[]Pair{pair("p"), pair("q")}, inGroup(copyOf("p"), two[0]), "p", "b", says("has the source of the copy", "node b has fewer")},
	} {
		got, err := Choose(c.pairs, c.req)
		if err != nil || got.Pair != c.pair || got.Home != c.home {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for _, s := range c.says {
			if !strings.Contains(got.Reason, s) {
				t.Errorf("%s: %q does not say %q", name, got.Reason, s)
			}
		}
	}
}

func TestFollows(t *testing.T) {
	g := &Group{Members: []Member{member("d0", "p", "a"), member("d1", "p", "b"), member("d2", "p", "a"), member("e0", "q", "a"),
		member("f0", "r", "b"), member("f1", "r", "b"), member("f2", "r", "b"), member("f3", "r", "b"), member("f4", "r", "a")}}
	for _, c := range []struct {
		member, node string
		want         bool
	}{{"d0", "b", true}, {"d0", "a", true}, {"d1", "a", false}, {"e0", "b", true}, {"f0", "a", true}, {"f4", "b", false}, {"unknown", "b", true}} {
		if got := g.Follows(c.member, c.node); got != c.want {
			t.Errorf("%s to %s: %v", c.member, c.node, got)
		}
	}
	if g.Members[0].Home != "a" {
		t.Error("the group was changed")
	}
}

func TestWhyAndBalance(t *testing.T) {
	members := []Member{member("d0", "p", "a"), member("d1", "p", "a", fixed), member("d2", "p", "")}
	if got := Balance(members); got != "a: 2, b: 0" {
		t.Error(got)
	}
	for i, want := range []string{"not spread over the nodes of pair p (a: 2, b: 0)", "it is pinned to node a, and the group does not change that", "not known"} {
		if got := Why(members[i], members); !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
	if got := Why(Member{Name: "d9", Pair: "p", Fixed: "the volume is striped"}, members); got != "the volume is striped" {
		t.Error(got)
	}
	members = append(members, member("d3", "p", "b"), member("d4", "q", "b"))
	if got := Why(members[0], members); got != "spread over the nodes of pair p (a: 2, b: 1)" {
		t.Error(got)
	}
	if got := Balance(members); got != "p a: 2, b: 1; q a: 0, b: 1" {
		t.Error(got)
	}
	for i := range 20 {
		members = append(members, member("m", fmt.Sprintf("s%02d", i), "a"))
	}
	if got := Balance(members); strings.Count(got, ";") != maxPairs || !strings.HasSuffix(got, "; and 6 more pairs") {
		t.Error(got)
	}
}
