package v1alpha1

import (
	"slices"
	"testing"
)

func TestPairsOfAPlacement(t *testing.T) {
	var none *Placement
	for _, c := range []struct {
		at    *Placement
		pairs []string
	}{
		{none, nil},
		{&Placement{Pair: "p0"}, []string{"p0"}},
		{&Placement{Pair: "p1", LegPairs: LegPairsOf([]string{"p1", "p0", "p1", "p0"})}, []string{"p1", "p0"}},
	} {
		if got := c.at.Pairs(); !slices.Equal(got, c.pairs) {
			t.Errorf("%+v: %v", c.at, got)
		}
		for _, p := range []string{"p0", "p1", "p2"} {
			if c.at.On(p) != slices.Contains(c.pairs, p) {
				t.Errorf("%+v: on %s: %v", c.at, p, c.at.On(p))
			}
		}
	}
	if got := LegPairsOf([]string{"p0", "p0"}); got != nil {
		t.Errorf("one pair: %v", got)
	}
	if got := LegPairsOf([]string{"p0", "p0", "p1"}); len(got) != 3 {
		t.Errorf("two pairs: %v", got)
	}
}
