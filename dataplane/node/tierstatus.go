package node

import (
	"fmt"
	"maps"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/tiering"
)

// heatParts is how many parts a LUN is divided into to show its heat.
const heatParts = 64

var (
	descTierReads  = desc("tier_reads_total", "Reads of hosts that the page cache did not have, by the tier that served them.", "volume", "tier")
	descTierTime   = desc("tier_read_seconds_total", "Time for which those reads were at the disks, together.", "volume", "tier")
	descTierWrites = desc("tier_writes_total", "Writes of hosts, by the tier on which they lie; the other node's LUNs are included.", "volume", "tier")
	descTierMoves  = desc("tier_moves_total", "Extents of 4 MiB that this node has moved to a tier, by reason: pin, reserve, heat, displace or make room.", "volume", "tier", "reason")
	descTierExts   = desc("tier_extents", "Extents of 4 MiB of LUNs that lie on a tier of this node, written or not.", "volume", "tier")
)

// GetTiering implements control.Node.
func (n *Node) GetTiering(lun string) (*targetv1.GetTieringResponse, error) {
	r := &targetv1.GetTieringResponse{Mode: n.tiers.mode.String()}
	for _, v := range n.store.Volumes() {
		t := n.tiers.of[v.Name()]
		if t == nil {
			continue
		}
		has := n.extentsByTier(t)
		x := &targetv1.TieredVolume{Volume: v.Name(), Fast: n.tierProto(t, tiering.Fast, has), Capacity: n.tierProto(t, tiering.Capacity, has)}
		t.mu.Lock()
		x.Wait, x.Reason = durationpb.New(t.wait), t.why
		for _, k := range t.counts {
			x.Moves += k
		}
		for _, m := range t.moves {
			r.Moves = append(r.Moves, &targetv1.TierMove{Time: timestamppb.New(m.at), Volume: v.Name(), Lun: m.lun, Extent: uint64(m.Extent), To: m.To.String(),
				Reason: string(m.Reason), Rate: m.Rate, Observed: m.observed})
		}
		t.mu.Unlock()
		if n.tiers.mode == balance.Off {
			x.Reason = "tiering is off"
		}
		r.Volumes = append(r.Volumes, x)
	}
	if lun == "" {
		return r, nil
	}
	e := n.entryOf(lun)
	switch {
	case e == nil:
		return nil, fmt.Errorf("LUN %s: %w", lun, meta.ErrNotFound)
	case n.tiers.of[meta.VolumeName(e.lun.Volume)] == nil:
		return nil, fmt.Errorf("lun_uuid: backing volume %q of node %s, in which LUN %s lies, has no fast tier: %w", meta.VolumeName(e.lun.Volume), n.self, lun, meta.ErrInvalid)
	case !e.file.Spread():
		return nil, fmt.Errorf("LUN %s has lost data at this node: %w", lun, meta.ErrInvalid)
	}
	r.Heat = n.tiers.of[meta.VolumeName(e.lun.Volume)].heat(e)
	return r, nil
}

// extentsByTier counts the extents of the LUNs of a volume.
func (n *Node) extentsByTier(t *volumeTiers) (has [2]uint64) {
	for _, f := range n.spreadFiles(t.v) {
		for place, k := range f.CountExtents() {
			has[t.tierOf(uint8(place))-tiering.Fast] += uint64(k)
		}
	}
	return has
}

func (n *Node) tierProto(t *volumeTiers, tier tiering.Tier, has [2]uint64) *targetv1.TierUse {
	io := &t.io[tier-tiering.Fast]
	u := &targetv1.TierUse{Extents: has[tier-tiering.Fast], Reads: io.reads.Load(), ReadTimeUs: io.readTime.Load() / 1000, Writes: io.writes.Load(),
		ReadUs: uint32(n.tiers.speeds.tier(t.v, tier == tiering.Fast).Microseconds())}
	for _, p := range t.v.Places() {
		if total, free, err := p.Room(); err == nil && p.Fast == (tier == tiering.Fast) {
			u.CapacityBytes, u.FreeBytes = u.CapacityBytes+uint64(total), u.FreeBytes+uint64(free)
		}
	}
	return u
}

// heat of a LUN, as the policy knows it.
func (t *volumeTiers) heat(e *unitEntry) *targetv1.LUNHeat {
	t.mu.Lock()
	defer t.mu.Unlock()
	count := int(e.file.ExtentCount())
	h := &targetv1.LUNHeat{Lun: e.lun.UUID, Volume: t.v.Name(), Pin: meta.PinName(e.lun.Tier), Extents: uint64(count)}
	id, parts := t.ids[e.lun.UUID], min(count, heatParts)
	for i := range parts {
		from, to := i*count/parts, (i+1)*count/parts
		p := &targetv1.HeatPart{}
		for x := from; x < to; x++ {
			p.Rate += t.policy.Rate(id, x)
			if t.fast[e.file.Where(int64(x))] {
				p.Fast++
			}
		}
		p.Fast /= float64(to - from)
		h.Parts = append(h.Parts, p)
	}
	return h
}

func (n *Node) collectTiers(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for _, v := range n.store.Volumes() {
		t := n.tiers.of[v.Name()]
		if t == nil {
			continue
		}
		has := n.extentsByTier(t)
		for _, tier := range []tiering.Tier{tiering.Fast, tiering.Capacity} {
			io := &t.io[tier-tiering.Fast]
			count(descTierReads, float64(io.reads.Load()), v.Name(), tier.String())
			count(descTierTime, float64(io.readTime.Load())/1e9, v.Name(), tier.String())
			count(descTierWrites, float64(io.writes.Load()), v.Name(), tier.String())
			ch <- prometheus.MustNewConstMetric(descTierExts, prometheus.GaugeValue, float64(has[tier-tiering.Fast]), v.Name(), tier.String())
		}
		t.mu.Lock()
		moves := maps.Clone(t.counts)
		t.mu.Unlock()
		for k, x := range moves {
			count(descTierMoves, float64(x), v.Name(), k.to.String(), string(k.reason))
		}
	}
}
