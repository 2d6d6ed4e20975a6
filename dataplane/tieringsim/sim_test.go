package tieringsim

import "testing"

// A pool of 128 GiB for six hours. make sim-tiers plays one of 2 TiB for a day.
func TestPolicyBesideOthers(t *testing.T) {
	s := Small
	s.Hours = 6
	sum, err := PlayAll(s, 1, 1, 2, func(family string, _ uint64, out map[string]Outcome) {
		t.Logf("%-8s gemel %.3f lru %.3f lfu %.3f oracle %.3f; %d moves, at most %d of an extent", family,
			out[Gemel].Hits, out[LRU].Hits, out[LFU].Hits, out[Oracle].Hits, out[Gemel].MovesAll, out[Gemel].MostMoves)
		if out[Gemel].Hits < out[Static].Hits-0.01 {
			t.Errorf("%s: moving is worse than not to move", family)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sum.Check(); err != nil {
		t.Error(err)
	}
}

func TestUnknownFamily(t *testing.T) {
	if _, err := Play("none", Small, 1); err == nil {
		t.Error("no error")
	}
}
