package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// slowCases have disks that take their time: reads of 5 ms that a disk serves side by side, and
// writes at twice of what disks take.
func slowCases() []testCase {
	return []testCase{
		{name: "randread_4k_qd32_5ms", rows: "lab_parallelism_5ms", quick: true, uses: []string{sysSlow}, run: slowReads},
		{name: "write_overload", uses: []string{sysOverload}, run: overload},
	}
}

// Systems on slow disks.
const (
	sysSlow     = "slow"
	sysOverload = "overload"
)

// slowDisk starts one, and ends it with a system.
func (b *bench) slowDisk(ctx context.Context, system, name string, size int64, k slowdisk.Knobs) (*slowdisk.Disk, error) {
	d, err := slowdisk.Start(ctx, slowdisk.Options{Dir: b.rig.Lab.Path("slow-" + system + "-" + name), Size: size, Knobs: k})
	if err != nil {
		return nil, err
	}
	b.onEnd(system, d.Close)
	return d, nil
}

// slowReads: each read of the disk takes 5 ms, and as many as wanted are served side by side. The
// lab is shown to be parallel first.
func slowReads(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	const latency = 5 * time.Millisecond
	size := int64(256 << 20) // at most 6,400 reads a second of 4 KiB at depth 32: a tenth of it in half a second
	names := []string{"a", "b", "tgt"}
	var disks [3]*slowdisk.Disk
	for i, n := range names {
		var err error
		if disks[i], err = b.slowDisk(ctx, sysSlow, n, size+768<<20, slowdisk.Knobs{}); err != nil {
			return nil, err
		}
	}
	p, err := b.startPair(ctx, rig.PairOptions{Name: sysSlow, Dirs: [2]string{disks[0].Mount, disks[1].Mount}})
	if err != nil {
		return nil, err
	}
	l, err := p.CreateLUN(ctx, "slow", size)
	if err != nil {
		return nil, err
	}
	ours, err := l.Serve(ctx, "default", rig.Both)
	if err != nil {
		return nil, err
	}
	b.keepOpen(sysSlow, ours.Device)
	t, err := b.startTgt(ctx, sysSlow, disks[2].Mount)
	if err != nil {
		return nil, err
	}
	peer, err := t.Serve(ctx, size)
	if err != nil {
		return nil, err
	}
	b.keepOpen(sysSlow, peer.Device)
	for _, s := range []*rig.Served{ours, peer} {
		if err := b.fill(ctx, s); err != nil {
			return nil, err
		}
	}
	for _, d := range disks {
		if err := d.Set(ctx, slowdisk.Knobs{ReadLatency: latency}); err != nil {
			return nil, err
		}
	}
	one, err := slowdisk.Parallelism(ctx, disks[0], 1, b.o.time)
	if err != nil {
		return nil, err
	}
	many, err := slowdisk.Parallelism(ctx, disks[0], 16, b.o.time)
	if err != nil {
		return nil, err
	}
	rows, err := b.compare(ctx, comparison{name: c.name, w: load.Workload{Reads: 100, Block: 4096, Depth: 32}, arms: []arm{{served: ours}, {served: peer}},
		before: func(context.Context) error { return rig.DropCaches() },
		note:   "each read of the disk takes 5 ms, any number side by side; caches dropped before each measurement"})
	control := results.Worst("lab_parallelism_5ms", "IOPS", []float64{many})
	control.Values = map[string]float64{"one_in_flight": one, "sixteen_in_flight": many, "times": many / one}
	control.Note = "the lab itself: direct reads of 4 KiB of the slow disk, 16 in flight against 1"
	return append(rows, control), err
}

// overload writes at twice the rate that the disks take, for a minute, and looks at what becomes of
// the pair.
func overload(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	const (
		bandwidth = 32 << 20 // bytes a second, of each node's disk
		block     = 64 << 10
		size      = 1 << 30
		after     = 15 * time.Second
		duration  = time.Minute

		controlTime = 10 * time.Second
	)
	var dirs [2]string
	var disks [2]*slowdisk.Disk
	for i, n := range harness.Names {
		d, err := b.slowDisk(ctx, sysOverload, n, size+1<<30, slowdisk.Knobs{})
		if err != nil {
			return nil, err
		}
		dirs[i], disks[i] = d.Mount, d
	}
	p, err := b.startPair(ctx, rig.PairOptions{Name: sysOverload, Dirs: dirs, Kill: true})
	if err != nil {
		return nil, err
	}
	l, err := p.CreateLUN(ctx, "overloaded", size)
	if err != nil {
		return nil, err
	}
	s, err := l.Serve(ctx, "default", rig.Both)
	if err != nil {
		return nil, err
	}
	b.keepOpen(sysOverload, s.Device)
	if err := b.fill(ctx, s); err != nil {
		return nil, err
	}
	for _, d := range disks {
		if err := d.Set(ctx, slowdisk.Knobs{WriteBandwidth: bandwidth}); err != nil {
			return nil, err
		}
	}
	paced := load.Workload{Block: block, Depth: 64, Rate: bandwidth / 2 / block, Submitted: true}
	control, err := load.Measure(ctx, paced, controlTime, p.Procs(), s.Device)
	if err != nil {
		return nil, err
	}
	watch, stop := context.WithCancel(ctx)
	defer stop()
	left := make(chan [2]int, 1)
	go func() { left <- watchPhases(watch, p) }()
	paced.Rate, paced.Tolerant = 2*bandwidth/block, true
	r, err := load.Start(paced, s.Device)
	if err != nil {
		return nil, err
	}
	figures := results.Figures{Name: s.Name, Flags: s.Flags}
	r.Mark()
	x, err := r.Sample(ctx, duration, nil)
	if errors.Is(err, load.ErrNothing) { // that is the result, then
		err = nil
	}
	served := x.Rate * float64(block) / (1 << 20)
	if err == nil {
		figures.Add(served, x)
	}
	errs, worst := r.Errors(), r.Worst()
	// Does anything serve when the load is gone?
	for _, d := range disks {
		err = errors.Join(err, d.Set(ctx, slowdisk.Knobs{}))
	}
	done := r.Done()
	err = errors.Join(err, r.Pause(ctx, after))
	recovered := 0.0
	if r.Done() > done {
		recovered = 1
	}
	stop()
	steps := <-left
	inSync := 0.0
	if p.InSync(ctx) == nil {
		inSync = 1
	}
	for i := range harness.Names { // a load without answers ends with its targets
		err = errors.Join(err, p.Kill(i))
	}
	rig.CloseDevice(s.Device)
	_ = r.Stop()
	if err != nil {
		return nil, err
	}
	row := results.Alone(c.name, "MiB/s", &figures, nil)
	row.GemelCPU = nil // processes may end
	row.Values = map[string]float64{"asked_mib_s": 2 * bandwidth >> 20, "disk_mib_s": bandwidth >> 20, "errors": float64(errs),
		"half_rate_p50_ms": results.Milliseconds(control.Hist.Quantile(0.5))[0], "half_rate_p99_ms": results.Milliseconds(control.Hist.Quantile(0.99))[0],
		"half_rate_longest_ms": results.Milliseconds(control.Hist.Longest())[0],
		"longest_ms":           results.Milliseconds(worst)[0], "step_downs": float64(steps[0] + steps[1]), "step_downs_a": float64(steps[0]), "step_downs_b": float64(steps[1]),
		"serves_15s_after": recovered, "in_sync_15s_after": inSync}
	row.Series = r.Series().Points()
	row.Note = "64 KiB random writes at twice of what each disk takes, depth 64, for a minute, then 15 s with disks as fast as they are; latency counts from the submission, which is late at such a rate; a disk that is shared fairly by 64 writes of 64 KiB gives 125 ms; " +
		"longest: also writes that were never answered; half_rate: the control, 10 s at half of what each disk takes, before; step_downs: how often a node stopped being a member"
	return []results.Row{row}, nil
}

// watchPhases counts, for each node, how often it stopped being a member until the context ends.
func watchPhases(ctx context.Context, p *rig.Pair) (steps [2]int) {
	var was [2]bool
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for i := range was {
		was[i] = true
	}
	for {
		select {
		case <-ctx.Done():
			return steps
		case <-t.C:
		}
		for i := range harness.Names {
			st, err := p.Status(ctx, i)
			if err != nil {
				continue
			}
			serves := slices.Contains([]targetv1.Phase{targetv1.Phase_PHASE_IN_SYNC, targetv1.Phase_PHASE_UNLINKED, targetv1.Phase_PHASE_ALONE,
				targetv1.Phase_PHASE_RESYNCING}, st.Phase)
			if was[i] && !serves {
				steps[i]++
				fmt.Printf("overload: node %s: %v: %s\n", harness.Names[i], st.Phase, st.Reason)
			}
			was[i] = serves
		}
	}
}
