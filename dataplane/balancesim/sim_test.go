package balancesim

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/balance"
)

// The limits are those that docs/ownership.md states. `make sim-balance` plays more histories.
func TestBalanceIsNearTheOptimum(t *testing.T) {
	var all []Outcome
	PlayAll(1, 50*familyCount, 2, func(o Outcome) { all = append(all, o) })
	s := Summarize(all)
	if err := s.Check(); err != nil {
		t.Errorf("%v\n%+v", err, s)
	}
	// The histories have something to gain and something to lose: else the limits above say
	// nothing.
	if s.StaticToOracle < 1.1 || s.StaticP95 < 1.4 || s.Moves == 0 || s.GreedyMoves < 20*s.Moves {
		t.Errorf("the histories are too easy: %+v", s)
	}
	if len(s.Families) != familyCount {
		t.Errorf("%d families", len(s.Families))
	}
	for name, f := range s.Families {
		if f.Histories != 50 {
			t.Errorf("%s: %d histories", name, f.Histories)
		}
	}
}

func TestHistoriesRepeat(t *testing.T) {
	for seed := range uint64(familyCount) {
		a, b := Play(seed), Play(seed)
		if a.Ours != b.Ours || a.Oracle != b.Oracle || a.Greedy != b.Greedy {
			t.Errorf("seed %d: %+v, then %+v", seed, a, b)
		}
	}
}

// reckless is what the limits have to catch: it moves whatever is uneven, wherever it belongs.
type reckless struct{ greedy }

func (reckless) decide(v *balance.View) []balance.Move {
	heavy := balance.A
	if v.Nodes[balance.B].Use > v.Nodes[balance.A].Use {
		heavy = balance.B
	}
	for i := range v.LUNs {
		if l := &v.LUNs[i]; l.Owner == heavy {
			return []balance.Move{{LUN: l.ID, From: l.Owner, To: l.Owner.Peer(), Reason: balance.ReasonBalance}}
		}
	}
	return nil
}

// A policy without restraint breaks each of the limits.
func TestLimitsCatchAPolicyWithoutRestraint(t *testing.T) {
	var all []Outcome
	for seed := range uint64(120) {
		o := Play(seed)
		o.Ours = play(o.H, reckless{})
		all = append(all, o)
	}
	s := Summarize(all)
	if s.ImbalanceToOracle <= maxMedian || s.ImbalanceP95 <= maxP95 || s.MovesToGreedy <= maxMoves || s.WorseThanStatic == 0 ||
		s.IdleBalanceMoves == 0 || s.ThrashPerHour <= maxThrash || s.PinViolations == 0 || s.GroupViolations == 0 {
		t.Errorf("%+v", s)
	}
}

// The optimum is no worse than anything that was played.
func TestNothingBeatsTheOptimumByMuch(t *testing.T) {
	for seed := range uint64(240) {
		o := Play(seed)
		if !o.H.judged {
			continue
		}
		// It may change owners once in five minutes only, so that a policy that follows faster can
		// be a little better.
		if best := min(o.Ours.Cost, o.Static.Cost, o.Greedy.Cost); best < 0.9*o.Oracle {
			t.Errorf("seed %d, %s: %.0f is less than the optimum, %.0f", seed, o.H.Family, best, o.Oracle)
		}
		if o.Static.Cost < o.Oracle*(1-1e-9) {
			t.Errorf("seed %d: leaving everything costs %.3f, the optimum %.3f", seed, o.Static.Cost, o.Oracle)
		}
	}
}
