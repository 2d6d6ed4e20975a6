package main

import (
	"context"
	"fmt"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// aluaRate is how many operations a second hosts request, with any paths: far below the limit of
// each way.
const aluaRate = 1500

// aluaCases show what it is worth that hosts know the owner: paths chosen by ALUA against paths
// used in turn.
func aluaCases() []testCase {
	return []testCase{
		{name: "alua_honoured_to_round_robin", rows: "alua_hop_only alua_hop_and_no_switch", quick: true, uses: []string{sysDefault}, run: alua(85)},
		{name: "alua_honoured_to_round_robin_95_5", uses: []string{sysDefault}, run: alua(95)},
	}
}

// alua is 16 KiB at a fixed rate. Round-robin sends every other operation to the node that does not
// own the LUN. If both paths are one host's, each change of path meets the path-switch barrier
// besides the hop; if they are two hosts', there is only the hop.
func alua(reads int) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		p, err := b.pair(ctx, sysDefault)
		if err != nil {
			return nil, err
		}
		l, err := p.CreateLUN(ctx, fmt.Sprintf("alua-%d", reads), b.o.size)
		if err != nil {
			return nil, err
		}
		base := &rig.Served{Flags: p.Describe(), Procs: p.Procs(), Whole: p.InSync}
		open := func(host string, via rig.Via) load.Device {
			if err != nil {
				return nil
			}
			d, e := l.Open(ctx, host, via)
			if e != nil {
				err = e
				return nil
			}
			b.keepOpen(sysDefault, d)
			return d
		}
		honoured := open("alua-honoured", rig.Both)
		oneA, oneB := open("alua-one", rig.OnlyA), open("alua-one", rig.OnlyB)
		twoA, twoB := open("alua-two-a", rig.OnlyA), open("alua-two-b", rig.OnlyB)
		if err != nil {
			return nil, err
		}
		if err := load.Fill(ctx, honoured); err != nil {
			return nil, err
		}
		named := func(name, row string, devices ...load.Device) arm {
			s := *base
			s.Name, s.Device = name, devices[0]
			return arm{served: &s, devices: devices, row: row}
		}
		suffix := c.name[len("alua_honoured_to_round_robin"):]
		return b.compare(ctx, comparison{name: c.name, mean: true, w: load.Workload{Reads: reads, Block: 16 << 10, Depth: 64, Rate: aluaRate},
			arms: []arm{
				named("honoured", "", honoured),
				named("round_robin", "", oneA, oneB),
				named("two_hosts_in_turn", "alua_hop_only"+suffix, twoA, twoB),
				named("always_forwarded", "alua_hop_and_no_switch"+suffix, twoB),
			},
			note: fmt.Sprintf("16 KiB, %d %% reads, %d a second; mean latency. round_robin: one host uses both paths in turn (hop and path-switch barrier); "+
				"two_hosts_in_turn: two hosts, one on each path (half of the operations hop, no barrier); always_forwarded: one host on the wrong path (all hop, no barrier)", reads, aluaRate)})
	}
}
