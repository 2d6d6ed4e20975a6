package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/scale"
)

// fewLUNs and manyLUNs are the two pairs that are compared: the pause of a fail-over must hardly
// depend on their number.
const fewLUNs, manyLUNs = 10, 1000

func scaleCases() []testCase {
	return []testCase{{name: "scale_1000_luns", run: scaleMany,
		rows: "failover_pause_10_luns failover_pause_1000_luns failover_pause_1000_to_10 transfer_all_pause_10_luns transfer_all_pause_1000_luns " +
			"arbiter_writes_per_failover idle_memory_1000_luns create_1000_luns"},
		{name: "creation", asked: true, run: creation, rows: "create_1000_luns_by_8 create_1000_luns_to_base create_1000_luns_by_8_to_base"}}
}

// creation compares how long it takes to make and map many LUNs with the commit that is compared
// with: for one caller, who waits for each, and for eight at once.
func creation(ctx context.Context, b *bench, c testCase) (list []results.Row, err error) {
	const rounds = 3
	for _, x := range []struct {
		row     string
		callers int
	}{{"create_1000_luns", 1}, {"create_1000_luns_by_8", 8}} {
		arms := []results.Figures{{Name: "this"}, {Name: "this, again"}, {Name: sysBase}}
		bins := []string{b.rig.Bin, b.rig.Bin, b.baseBin}
		if b.baseBin == "" {
			arms = arms[:2]
		}
		for round := range rounds {
			for _, i := range order(round, len(arms)) {
				dir := b.rig.Lab.Path(fmt.Sprintf("creation-%d-%d-%d", x.callers, round, i))
				took, err := scale.Create(ctx, scale.Options{Dir: dir, Binary: bins[i], LUNs: manyLUNs, Callers: x.callers})
				if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
					return list, fmt.Errorf("%s, %s: %w", x.row, arms[i].Name, err)
				}
				arms[i].Add(took.Seconds(), load.Sample{Hist: new(load.Histogram)})
				fmt.Printf("%s, %s: %v\n", x.row, arms[i].Name, took.Round(time.Millisecond))
			}
		}
		if x.callers > 1 {
			list = append(list, results.Worst(x.row, "s", arms[0].Values))
		}
		if len(arms) > 2 {
			row := results.Against(x.row+"_to_base", "s", &arms[0], nil, &arms[2], false).Controlled(results.ControlOf(&arms[0], &arms[1]))
			row.Note = "time, so that less than 1 is quicker; callers at once: " + fmt.Sprint(x.callers)
			list = append(list, row)
		}
	}
	return list, nil
}

// scaleMany measures a pair with few LUNs and one with many. There is no peer.
func scaleMany(ctx context.Context, b *bench, c testCase) (list []results.Row, err error) {
	const events = 3
	var r [2]scale.Result
	for i, n := range []int{fewLUNs, manyLUNs} {
		r[i], err = scale.Measure(ctx, scale.Options{Dir: b.rig.Lab.Path(fmt.Sprintf("scale-%d", n)), Binary: b.rig.Bin, LUNs: n, Events: events,
			Log: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }})
		if err != nil {
			return list, fmt.Errorf("%d LUNs: %w", n, err)
		}
		list = append(list, results.Worst(fmt.Sprintf("failover_pause_%d_luns", n), "ms", results.Milliseconds(r[i].Failover...)),
			results.Worst(fmt.Sprintf("transfer_all_pause_%d_luns", n), "ms", results.Milliseconds(r[i].Transfer...)))
	}
	many := r[1]
	var writes []float64
	for _, n := range slices.Concat(r[0].ArbiterWrites, many.ArbiterWrites) {
		writes = append(writes, float64(n))
	}
	return append(list,
		results.Worst("failover_pause_1000_to_10", "x", []float64{float64(scale.Median(many.Failover)) / float64(scale.Median(r[0].Failover))}),
		results.Worst("arbiter_writes_per_failover", "writes", writes),
		results.Worst("idle_memory_1000_luns", "MiB", []float64{scale.MiB(many.RSS[0]), scale.MiB(many.RSS[1])}),
		results.Worst("create_1000_luns", "s", []float64{many.Creation.Seconds()})), nil
}
