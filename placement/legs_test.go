package placement

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func striped(name string, free int64) Pair {
	return Pair{Name: name, Cluster: "main", Ready: true, InSync: true, Pools: []Pool{{Capacity: 1 << 40, Free: free}}, Nodes: []Node{{Name: "a"}, {Name: "b"}}}
}

func TestLegsAreSpreadOverPairs(t *testing.T) {
	const gib = int64(1 << 30)
	away, behind, foreign := striped("p2", 90*gib), striped("p2", 90*gib), striped("p9", 900*gib)
	away.Ready, behind.InSync, foreign.Cluster = false, false, "other"
	three := []Pair{striped("p0", 50*gib), striped("p1", 70*gib), striped("p2", 60*gib)}
	for _, c := range []struct {
		name  string
		pairs []Pair
		size  int64 // GiB
		legs  int
		on    string
	}{
		{"the most room first", three, 4, 4, "p1 p2 p0 p1"},
		{"no more pairs than legs", three, 4, 2, "p1 p2"},
		{"a pair that is not ready", []Pair{three[0], three[1], away}, 4, 4, "p1 p0 p1 p0"},
		{"a pair that is not in sync", []Pair{three[0], three[1], behind}, 4, 4, "p1 p0 p1 p0"},
		{"only one is in sync", []Pair{three[0], behind}, 4, 2, "p0 p2"},
		{"a pair of another cluster", append([]Pair{foreign}, three[:2]...), 4, 4, "p1 p0 p1 p0"},
		// 160 GiB over three pairs are 80 for the one with two legs of four, which none has.
		{"fewer pairs have room for more", three, 160, 4, ""},
		{"one pair has room only for its part", []Pair{striped("p0", 10*gib), striped("p1", 70*gib), striped("p2", 60*gib)}, 80, 4, "p1 p2 p1 p2"},
		{"all, though one leg more does not fit each", three, 150, 3, "p1 p2 p0"},
	} {
		choice, on, err := Legs(c.pairs, Request{Cluster: "main", Size: c.size * gib}, c.legs)
		if got := strings.Join(on, " "); got != c.on || (err == nil) != (c.on != "") {
			t.Errorf("%s: %s: %v", c.name, got, err)
			continue
		}
		if err == nil && (choice.Pair != on[0] || !strings.Contains(choice.Reason, on[1])) {
			t.Errorf("%s: %+v", c.name, choice)
		}
	}
}

func TestTooFewPairsForLegs(t *testing.T) {
	away := striped("p1", 1<<40)
	away.Ready = false
	for _, c := range []struct {
		pairs []Pair
		is    error
		says  []string
	}{
		{[]Pair{striped("p0", 1<<40)}, ErrNoPair, []string{"cluster main has 1 of them", "two are needed"}},
		{[]Pair{striped("p0", 1<<40), away}, ErrNotReady, []string{"p1: no pair is ready"}},
		{[]Pair{striped("p0", 1<<40), striped("p1", 1<<20)}, ErrNoRoom, []string{"p1: 1048576 bytes are free", "2147483648 bytes each"}},
	} {
		_, _, err := Legs(c.pairs, Request{Cluster: "main", Size: 4 << 30}, 4)
		if !errors.Is(err, c.is) || slices.ContainsFunc(c.says, func(s string) bool { return !strings.Contains(err.Error(), s) }) {
			t.Errorf("%v, and not %v with %q", err, c.is, c.says)
		}
	}
}

// The consumer's pair is the first one, and its node the home of the first leg.
func TestFirstLegIsNearTheConsumer(t *testing.T) {
	pairs := []Pair{striped("p0", 2<<40), striped("p1", 1<<39)}
	pairs[1].Nodes[1].Worker = "w"
	choice, on, err := Legs(pairs, Request{Cluster: "main", Size: 1 << 30, Consumer: Location{Worker: "w"}}, 4)
	if err != nil || choice.Pair != "p1" || choice.Home != "b" || strings.Join(on, " ") != "p1 p0 p1 p0" {
		t.Errorf("%+v, %v: %v", choice, on, err)
	}
}

func TestLegHome(t *testing.T) {
	for _, c := range []struct{ volume, on, want string }{
		{"", "", "abab"},
		{"a", "", "abab"},
		{"b", "", "baba"},
		{"a", "p q p q", "abba"},
		{"b", "p q p q", "baab"},
		{"a", "p q r p", "abab"},
		{"", "p q", "ab"},
		{"a", "p p q q", "abba"},
	} {
		got, on := "", strings.Fields(c.on)
		for i := range len(c.want) {
			got += LegHome(c.volume, on, i)
		}
		if got != c.want {
			t.Errorf("%q on %q: %s", c.volume, c.on, got)
		}
	}
}
