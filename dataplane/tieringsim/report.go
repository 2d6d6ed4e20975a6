package tieringsim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Summary of loads under all policies. The names are those of out/tiers-sim.json.
type Summary struct {
	Size  Size `json:"size"`
	Seeds int  `json:"seeds"`
	// HitShareToOracle is what Fast serves of a Zipf load, beside what it serves if the extents
	// that are most likely read lie there; the least of all seeds.
	HitShareToOracle float64 `json:"hit_share_to_oracle"`
	// UniformMoved is the share of the extents of an evenly warm set, larger than Fast, that moved
	// in a day while Fast was full; the most of all seeds.
	UniformMoved float64 `json:"uniform_moved"`
	// ScansToLRU is what Fast serves of a Zipf load beside scans, in times what it serves under
	// LRU; the least of all seeds.
	ScansToLRU float64 `json:"scans_to_lru"`
	// ScansToZipf is what scans leave of what Fast serves of the same load without them.
	ScansToZipf float64 `json:"scans_to_zipf"`
	// SwingingMoves are moves in an hour, as a share of Fast, where two sets take turns every 20
	// minutes; the most of all seeds.
	SwingingMoves float64                       `json:"swinging_moves_per_hour"`
	Families      map[string]map[string]Outcome `json:"families"` // of the first seed, by policy
}

// Limits that Check applies.
const (
	minHitShare    = 0.85
	maxUniform     = 0.01
	minScansToZipf = 0.98
	maxSwinging    = 0.1
)

// Check reports every figure that is beyond its limit.
func (s *Summary) Check() error {
	var errs []error
	least := func(name string, is, want float64) {
		if is < want {
			errs = append(errs, fmt.Errorf("%s is %g, the least is %g", name, is, want))
		}
	}
	most := func(name string, is, want float64) {
		if is > want {
			errs = append(errs, fmt.Errorf("%s is %g, the limit is %g", name, is, want))
		}
	}
	least("hit_share_to_oracle", s.HitShareToOracle, minHitShare)
	most("uniform_moved", s.UniformMoved, maxUniform)
	least("scans_to_lru", s.ScansToLRU, 1)
	least("scans_to_zipf", s.ScansToZipf, minScansToZipf)
	most("swinging_moves_per_hour", s.SwingingMoves, maxSwinging)
	return errors.Join(errs...)
}

// PlayAll plays every family with so many seeds, so many at a time, and shows each.
func PlayAll(s Size, base uint64, seeds, procs int, show func(family string, seed uint64, out map[string]Outcome)) (*Summary, error) {
	type job struct {
		family string
		seed   uint64
	}
	jobs := make(chan job)
	all := map[job]map[string]Outcome{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	for range procs {
		wg.Go(func() {
			for j := range jobs {
				out, err := Play(j.family, s, j.seed)
				mu.Lock()
				if failed = errors.Join(failed, err); err == nil {
					all[j] = out
					show(j.family, j.seed, out)
				}
				mu.Unlock()
			}
		})
	}
	for i := range uint64(seeds) {
		for _, f := range slices.Sorted(maps.Keys(Families)) {
			jobs <- job{f, base + i}
		}
	}
	close(jobs)
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	sum := &Summary{Size: s, Seeds: seeds, HitShareToOracle: 1, ScansToLRU: 1000, ScansToZipf: 1, Families: map[string]map[string]Outcome{}}
	for j, out := range all {
		if j.seed == base {
			sum.Families[j.family] = out
		}
		ours := out[Gemel]
		switch j.family {
		case "zipf":
			sum.HitShareToOracle = min(sum.HitShareToOracle, ours.Hits/out[Oracle].Hits)
			sum.ScansToZipf = min(sum.ScansToZipf, all[job{"scans", j.seed}][Gemel].Hits/ours.Hits)
		case "uniform":
			sum.UniformMoved = max(sum.UniformMoved, float64(ours.MovesAll)/float64(3*s.Fast))
		case "scans":
			sum.ScansToLRU = min(sum.ScansToLRU, ours.Hits/out[LRU].Hits)
		case "swinging":
			sum.SwingingMoves = max(sum.SwingingMoves, float64(ours.Moves)/float64(s.Fast)/(float64(s.Hours)/2))
		}
	}
	return sum, nil
}
