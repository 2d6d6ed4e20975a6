package balancesim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// Summary of many histories; the names are those of out/balance.json.
type Summary struct {
	Histories         int               `json:"histories"`
	ImbalanceToOracle float64           `json:"imbalance_to_oracle"`     // median
	ImbalanceP95      float64           `json:"imbalance_to_oracle_p95"` // of histories
	ImbalanceWorst    float64           `json:"imbalance_to_oracle_worst"`
	StaticToOracle    float64           `json:"static_to_oracle"` // median: what there is to gain
	StaticP95         float64           `json:"static_to_oracle_p95"`
	GreedyToOracle    float64           `json:"greedy_to_oracle"`
	CountToOracle     float64           `json:"count_to_oracle"` // if the numbers of LUNs are kept even
	Moves             int               `json:"moves"`
	GreedyMoves       int               `json:"greedy_moves"`
	MovesToGreedy     float64           `json:"moves_to_greedy"`
	WorseThanStatic   int               `json:"worse_than_static"` // histories, by more than 5 %
	IdleBalanceMoves  int               `json:"idle_balance_moves"`
	ThrashPerHour     int               `json:"thrash_moves_per_lun_hour"` // the most of any LUN, at any rate
	PinViolations     int               `json:"pin_violations"`
	GroupViolations   int               `json:"group_spread_violations"`
	Families          map[string]Family `json:"families"`
	Worst             []Bad             `json:"worst"`
	Worse             []Bad             `json:"worse"` // than leaving every LUN where it is
}

// Limits that Check applies.
const (
	maxMedian = 1.15 // of the cost to the cost of the optimum
	maxP95    = 1.4
	maxMoves  = 0.25 // of the moves of the greedy policy
	maxThrash = 6    // moves of one LUN in an hour
)

// Check reports every figure that is beyond its limit.
func (s *Summary) Check() error {
	var errs []error
	limit := func(name string, is, most float64) {
		if is > most {
			errs = append(errs, fmt.Errorf("%s is %g, the limit is %g", name, is, most))
		}
	}
	limit("imbalance_to_oracle", s.ImbalanceToOracle, maxMedian)
	limit("imbalance_to_oracle_p95", s.ImbalanceP95, maxP95)
	limit("moves_to_greedy", s.MovesToGreedy, maxMoves)
	limit("worse_than_static", float64(s.WorseThanStatic), 0)
	limit("idle_balance_moves", float64(s.IdleBalanceMoves), 0)
	limit("thrash_moves_per_lun_hour", float64(s.ThrashPerHour), maxThrash)
	limit("pin_violations", float64(s.PinViolations), 0)
	limit("group_spread_violations", float64(s.GroupViolations), 0)
	return errors.Join(errs...)
}

// Family is one kind of history.
type Family struct {
	Histories    int     `json:"histories"`
	ToOracle     float64 `json:"to_oracle"`
	ToOracleP95  float64 `json:"to_oracle_p95"`
	Static       float64 `json:"static"`
	MovesPerHour float64 `json:"moves_per_lun_hour"`
	Forwarded    float64 `json:"forwarded_share"`
}

// Bad is a history to look at.
type Bad struct {
	Seed     uint64  `json:"seed"`
	Family   string  `json:"family"`
	ToOracle float64 `json:"to_oracle"`
	Static   float64 `json:"static"`
}

// Outcome of one history under all policies.
type Outcome struct {
	H                           *History
	Ours, Static, Count, Greedy Result
	Oracle                      float64
}

// Play one seed.
func Play(seed uint64) Outcome {
	h := Make(seed)
	o := Outcome{H: h, Ours: play(h, &ours{}), Static: play(h, static{}), Count: play(h, byCount{}), Greedy: play(h, greedy{})}
	if h.judged {
		o.Oracle = oracle(h)
	}
	return o
}

// PlayAll plays n seeds from base on, procs at a time.
func PlayAll(base uint64, n, procs int, each func(Outcome)) {
	seeds := make(chan uint64)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range procs {
		wg.Go(func() {
			for s := range seeds {
				o := Play(s)
				mu.Lock()
				each(o)
				mu.Unlock()
			}
		})
	}
	for i := range n {
		seeds <- base + uint64(i)
	}
	close(seeds)
	wg.Wait()
}

// Summarize the outcomes, in any order.
func Summarize(all []Outcome) Summary {
	s := Summary{Histories: len(all), Families: map[string]Family{}}
	slices.SortFunc(all, func(x, y Outcome) int { return cmp.Compare(x.H.Seed, y.H.Seed) })
	var ratio, fixed, quick, even []float64
	by := map[string][]float64{}
	for i := range all {
		o := &all[i]
		f := s.Families[o.H.Family]
		f.Histories++
		f.MovesPerHour += float64(o.Ours.Moves) / float64(len(o.H.luns)) / hours
		f.Forwarded += o.Ours.Forwarded
		s.PinViolations += o.Ours.Pins
		s.GroupViolations += o.Ours.Spread
		if o.H.idle {
			s.IdleBalanceMoves += o.Ours.Balances
		}
		if o.H.flap {
			s.ThrashPerHour = max(s.ThrashPerHour, o.Ours.PerHour)
		}
		if o.H.judged {
			s.Moves += o.Ours.Moves
			s.GreedyMoves += o.Greedy.Moves
			r := o.Ours.Cost / o.Oracle
			ratio, fixed, quick = append(ratio, r), append(fixed, o.Static.Cost/o.Oracle), append(quick, o.Greedy.Cost/o.Oracle)
			even = append(even, o.Count.Cost/o.Oracle)
			by[o.H.Family] = append(by[o.H.Family], r)
			f.Static += o.Static.Cost / o.Oracle
			if o.Ours.Cost > 1.05*o.Static.Cost {
				s.WorseThanStatic++
				s.Worse = append(s.Worse, Bad{o.H.Seed, o.H.Family, round(r), round(o.Static.Cost / o.Oracle)})
			}
			s.Worst = append(s.Worst, Bad{o.H.Seed, o.H.Family, round(r), round(o.Static.Cost / o.Oracle)})
		}
		s.Families[o.H.Family] = f
	}
	for name, f := range s.Families {
		n := float64(f.Histories)
		f.MovesPerHour, f.Forwarded, f.Static = round(f.MovesPerHour/n), round(f.Forwarded/n), round(f.Static/n)
		f.ToOracle, f.ToOracleP95 = round(quantile(by[name], 0.5)), round(quantile(by[name], 0.95))
		s.Families[name] = f
	}
	s.ImbalanceToOracle, s.ImbalanceP95, s.ImbalanceWorst = round(quantile(ratio, 0.5)), round(quantile(ratio, 0.95)), round(quantile(ratio, 1))
	s.StaticToOracle, s.StaticP95, s.GreedyToOracle = round(quantile(fixed, 0.5)), round(quantile(fixed, 0.95)), round(quantile(quick, 0.5))
	s.CountToOracle = round(quantile(even, 0.5))
	s.MovesToGreedy = round(float64(s.Moves) / max(float64(s.GreedyMoves), 1))
	slices.SortStableFunc(s.Worst, func(x, y Bad) int { return cmp.Compare(y.ToOracle, x.ToOracle) })
	s.Worst = s.Worst[:min(len(s.Worst), 10)]
	return s
}

func round(x float64) float64 { return math.Round(x*1000) / 1000 }

func quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Sorted(slices.Values(xs))
	return xs[min(int(q*float64(len(xs))), len(xs)-1)]
}
