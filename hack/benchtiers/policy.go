package main

import (
	"runtime"
	"time"

	"github.com/gemel-storage/gemel/dataplane/tieringsim"
)

// policyResult is of a day of a pool of 128 GiB, played without disks: what no lab can show.
type policyResult struct {
	HitShareToOracle float64 `json:"hit_share_to_oracle"` // of what Fast serves of a Zipf load
	ScansToLRU       float64 `json:"scans_to_lru"`        // what Fast serves beside scans, in times what it serves under LRU
}

// policySeed is that of the history in docs/decisions/0092.
const policySeed = 7

func (b *bench) policy() (*policyResult, error) {
	b.begun = time.Now()
	sum, err := tieringsim.PlayAll(tieringsim.Small, policySeed, 1, runtime.GOMAXPROCS(0), func(family string, _ uint64, all map[string]tieringsim.Outcome) {
		b.say("%s: Fast serves %.3f of the reads; LRU %.3f, an oracle %.3f", family, all[tieringsim.Gemel].Hits, all[tieringsim.LRU].Hits, all[tieringsim.Oracle].Hits)
	})
	if err != nil {
		return nil, err
	}
	return &policyResult{sum.HitShareToOracle, sum.ScansToLRU}, nil
}
