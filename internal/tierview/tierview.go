// Package tierview writes for people what lies on which tier of a backing volume, and how a LUN is
// used.
package tierview

import (
	"fmt"
	"math"
	"strings"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/human"
)

const extent = 4 << 20 // bytes

// Volume writes a table of the tiers of a volume.
func Volume(b *strings.Builder, v *targetv1.TieredVolume) {
	reads, writes := v.Fast.GetReads()+v.Capacity.GetReads(), v.Fast.GetWrites()+v.Capacity.GetWrites()
	spent := v.Fast.GetReadTimeUs() + v.Capacity.GetReadTimeUs()
	fmt.Fprintf(b, "  %-9s %10s %10s %10s %9s %8s %12s %8s\n", "TIER", "SIZE", "FREE", "EXTENTS", "READ IN", "READS", "TIME OF READS", "WRITES")
	for _, t := range []struct {
		name string
		u    *targetv1.TierUse
	}{{"fast", v.Fast}, {"capacity", v.Capacity}} {
		fmt.Fprintf(b, "  %-9s %10s %10s %10d %9s %8s %12s %8s\n", t.name, human.Size(t.u.GetCapacityBytes()), human.Size(t.u.GetFreeBytes()), t.u.GetExtents(),
			readIn(t.u.GetReadUs()), share(t.u.GetReads(), reads), share(t.u.GetReadTimeUs(), spent), share(t.u.GetWrites(), writes))
	}
	if w := v.Wait.AsDuration(); w > 0 {
		fmt.Fprintf(b, "  moves have not paid lately: an extent has to be used much for %v before it moves\n", w)
	}
	if v.Reason != "" {
		fmt.Fprintf(b, "  %s\n", v.Reason)
	}
}

func readIn(us uint32) string {
	if us == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f ms", float64(us)/1000)
}

func share(x, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(x)/float64(of))
}

// why says in words for which reason an extent moves.
var why = map[string]string{
	"pin":       "its LUN is pinned there",
	"reserve":   "too little of fast is free",
	"heat":      "it is used enough",
	"displace":  "it is used much more than another one",
	"make room": "another one takes its place",
}

// Move says in one line what has moved, or would have, and why.
func Move(m *targetv1.TierMove) string {
	verb, bound := "moved", "at least"
	if m.Observed {
		verb = "would move"
	}
	if m.To != "fast" {
		bound = "at most"
	}
	reason := why[m.Reason]
	if reason == "" {
		reason = m.Reason
	}
	return fmt.Sprintf("%s extent %d of LUN %s to %s: %s (%s %s)", verb, m.Extent, m.Lun, m.To, reason, bound, rate(m.Rate))
}

func rate(r float64) string {
	switch {
	case r >= 10:
		return fmt.Sprintf("%.0f accesses a second", r)
	case r >= 0.1:
		return fmt.Sprintf("%.1f accesses a second", r)
	}
	return fmt.Sprintf("%.0f accesses an hour", r*3600)
}

var blocks = []rune("▁▂▃▄▅▆▇█")

// Heat writes a LUN as two lines of blocks, from its beginning to its end: how much each part is
// used, where each block is four times as much as the one below it, and which parts lie on fast.
func Heat(b *strings.Builder, h *targetv1.LUNHeat) {
	most := 0.0
	for _, p := range h.Parts {
		most = max(most, p.Rate)
	}
	var heat, fast strings.Builder
	for _, p := range h.Parts {
		heat.WriteRune(block(p.Rate, most))
		switch {
		case p.Fast >= 0.75:
			fast.WriteRune('█')
		case p.Fast >= 0.25:
			fast.WriteRune('▄')
		case p.Fast > 0:
			fast.WriteRune('▁')
		default:
			fast.WriteRune(' ')
		}
	}
	fmt.Fprintf(b, "LUN %s, %s, pinned to %s\n", h.Lun, human.Size(h.Extents*extent), h.Pin)
	fmt.Fprintf(b, "  used      %s  most: %s\n", heat.String(), rate(most))
	fmt.Fprintf(b, "  on fast   %s\n", strings.TrimRight(fast.String(), " "))
}

func block(r, most float64) rune {
	if r <= 0 || most <= 0 {
		return ' '
	}
	i := len(blocks) - 1 + int(math.Ceil(math.Log(r/most)/math.Log(4)))
	return blocks[max(i, 0)]
}
