package main

import (
	"context"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// checksumCases are what the checksums of blocks cost: the default case without them to the default
// case with them, so that 1.05 means 5 % more. The bad rows are among them: long reads, of which
// each byte is looked at once more, writes of less than a block, which read the rest of it, and
// cold reads, which may find their checksums on the disk only.
func checksumCases() (list []testCase) {
	for _, x := range []struct {
		name  string
		quick bool
		w     load.Workload
	}{
		{"checksum_cost_read_qd32", true, load.Workload{Reads: 100, Block: 4096, Depth: 32}},
		{"checksum_cost_mirrored_write_qd32", true, load.Workload{Block: 4096, Depth: 32}},
		{"checksum_cost_read_qd1", false, load.Workload{Reads: 100, Block: 4096, Depth: 1}},
		{"checksum_cost_mirrored_write_qd1", false, load.Workload{Block: 4096, Depth: 1}},
		{"checksum_cost_fua_qd1", false, load.Workload{Block: 4096, Depth: 1, FUA: true}},
		{"checksum_cost_seqread_1m_qd4", true, load.Workload{Reads: 100, Block: 1 << 20, Depth: 4, Sequential: true}},
		{"checksum_cost_mirrored_seqwrite_1m_qd4", false, load.Workload{Block: 1 << 20, Depth: 4, Sequential: true}},
		{"checksum_cost_mirrored_write_512_qd32", true, load.Workload{Block: 512, Depth: 32}},
	} {
		list = append(list, testCase{name: x.name, quick: x.quick, uses: []string{sysDefault, sysUnchecked, sysTwin}, run: checksumCost(x.w)})
	}
	for _, x := range []struct {
		name string
		w    load.Workload
	}{
		{"checksum_cost_randread_4k_qd32_cold", load.Workload{Reads: 100, Block: 4096, Depth: 32}},
		{"checksum_cost_randread_64k_qd16_cold", load.Workload{Reads: 100, Block: 64 << 10, Depth: 16}},
	} {
		list = append(list, testCase{name: x.name, uses: []string{sysDefault, sysUnchecked, sysTwin}, run: checksumCostCold(x.w)})
	}
	return list
}

const checksumNote = "without checksums to with them: above 1 is what they cost; the control is between two pairs without them"

// costOf compares the default case without checksums with the default case; open opens what is
// loaded of a system. The control is not the same processes once more but another pair without
// checksums: two pairs that are alike differ, too, by where their memory and files lie.
func (b *bench) costOf(ctx context.Context, c comparison, open func(context.Context, string) (*rig.Served, error)) ([]results.Row, error) {
	for _, system := range []string{sysUnchecked, sysDefault, sysTwin} {
		s, err := open(ctx, system)
		if err != nil {
			return nil, err
		}
		c.arms = append(c.arms, arm{served: s})
	}
	c.twin, c.arms = &c.arms[2], c.arms[:2]
	return b.compare(ctx, b.often(c))
}

func checksumCost(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		return b.costOf(ctx, comparison{name: c.name, w: w, note: checksumNote}, b.system)
	}
}

func checksumCostCold(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		return b.costOf(ctx, comparison{name: c.name, w: w, before: func(context.Context) error { return rig.DropCaches() },
			note: checksumNote + "; page caches dropped before each measurement, the nodes' own memory of checksums is not"}, b.coldSystem)
	}
}
