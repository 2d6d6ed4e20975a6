package node

import (
	"cmp"
	"context"
	"time"

	"github.com/gemel-storage/gemel/dataplane/tiering"
)

// Only the owner of a LUN sees which reads miss the page cache. It tells the other node of them
// once a round, so that what is hot lies on that node's fast tier, too, when the LUN moves there.
// No data depends on a hint, and one that is lost is not sent again.

// featureTiers on the link: the other node knows pins to a tier, and takes hints.
const featureTiers = "tiers"

const (
	// hintsMost is of how many extents a round tells, those that were read most; hintsInOne is how
	// many are in one call.
	hintsMost  = 16_000
	hintsInOne = 2_000
	hintTime   = 5 * time.Second
)

// tierHint is how often hosts have read an extent.
type tierHint struct {
	LUN    string `json:"l"`
	Extent int    `json:"e"`
	Reads  uint32 `json:"r"`
}

type tierHints struct {
	Hints []tierHint `json:"hints"`
}

// sendHints tells the other node of the reads of LUNs that this node owns.
func (n *Node) sendHints(counts map[string][]tiering.Count) {
	if !n.peerKnows(featureTiers) {
		return
	}
	top := tiering.NewTop(hintsMost, func(x, y tierHint) int {
		return cmp.Or(cmp.Compare(y.Reads, x.Reads), cmp.Compare(x.LUN, y.LUN), cmp.Compare(x.Extent, y.Extent))
	})
	for lun, list := range counts {
		for _, c := range list {
			if c.Reads > 0 {
				top.Add(tierHint{lun, c.Extent, c.Reads})
			}
		}
	}
	ctx, cancel := context.WithTimeout(n.run.ctx, hintTime)
	defer cancel()
	for list := top.List(); len(list) > 0; {
		k := min(len(list), hintsInOne)
		if err := n.call(ctx, "tier_hints", tierHints{list[:k]}, nil); err != nil {
			n.log.Debug("the other node was not told what hosts read", "err", err)
			return
		}
		list = list[k:]
	}
}

// takeHints keeps what the owner says for the next round. A LUN that this node does not know, or
// whose volume has one tier here, is passed over.
func (n *Node) takeHints(req tierHints) {
	for _, h := range req.Hints {
		e := n.entryOf(h.LUN)
		if e == nil || e.tier == nil || h.Extent < 0 || int64(h.Extent) >= e.file.ExtentCount() {
			continue
		}
		t := e.tier.of
		t.mu.Lock()
		if list := t.hints[h.LUN]; len(list) < hintsMost {
			t.hints[h.LUN] = append(list, tiering.Count{Extent: h.Extent, Reads: h.Reads})
		}
		t.mu.Unlock()
	}
}
