package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/e2e/scale"
)

// fewLUNs and manyLUNs are the two pairs that are compared: the pause of a fail-over must hardly depend on their number.
const fewLUNs, manyLUNs = 10, 1000

// scaleName is matched against -only.
const scaleName = "scale_1000_luns failover_pause_ms transfer_all_pause_ms idle_memory_mib"

// scaleResults measures a pair with few LUNs and one with many. There is no peer.
func scaleResults(ctx context.Context, o options, bin string) (list []result, err error) {
	if !strings.Contains(scaleName, o.only) {
		return nil, nil
	}
	var r [2]scale.Result
	for i, n := range []int{fewLUNs, manyLUNs} {
		r[i], err = scale.Measure(ctx, scale.Options{Dir: filepath.Join(o.dir, fmt.Sprintf("scale-%d", n)), Binary: bin, LUNs: n, Events: o.events,
			Log: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }})
		if err != nil {
			return list, fmt.Errorf("%d LUNs: %w", n, err)
		}
		list = append(list, worstOf(fmt.Sprintf("failover_pause_%d_luns", n), pausesMS(r[i].Failover)),
			worstOf(fmt.Sprintf("transfer_all_pause_%d_luns", n), pausesMS(r[i].Transfer)))
	}
	many := r[1]
	return append(list,
		number("failover_pause_1000_to_10", "x", []float64{float64(scale.Median(many.Failover)) / float64(scale.Median(r[0].Failover))}),
		number("arbiter_writes_per_failover", "writes", counts(append(slices.Clone(r[0].ArbiterWrites), many.ArbiterWrites...))),
		number("idle_memory_1000_luns", "MiB", []float64{scale.MiB(many.RSS[0]), scale.MiB(many.RSS[1])}),
		number("create_1000_luns", "s", []float64{many.Creation.Seconds()})), nil
}

// number is a result in any unit, the largest of some.
func number(name, unit string, v []float64) result {
	r := worstOf(name, v)
	r.Unit = unit
	return r
}

func pausesMS(d []time.Duration) (v []float64) {
	for _, x := range d {
		v = append(v, float64(x)/float64(time.Millisecond))
	}
	return v
}

func counts(n []uint64) (v []float64) {
	for _, x := range n {
		v = append(v, float64(x))
	}
	return v
}
