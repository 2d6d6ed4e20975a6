package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// snapshotCases are snapshots of a LUN whose images have many extents, as a database makes them of
// a thin LUN.
func snapshotCases() []testCase {
	return []testCase{
		{name: "snapshot_pause_ms", uses: []string{sysDefault}, run: snapshotFragmented(200_000)},
		{name: "snapshot_pause_20k_extents_ms", quick: true, uses: []string{sysDefault}, run: snapshotFragmented(20_000)},
		{name: "snapshot_minute_after", rows: "snapshot_minute_after_p99_ratio snapshot_minute_after_rate_ratio", uses: []string{sysDefault}, run: snapshotMinuteAfter(200_000)},
		{name: "snapshot_pause_aged_ms", asked: true, uses: []string{sysDefault}, run: snapshotAged},
	}
}

const fragmentedSize = 8 << 30

// pauseSnapshots is how many snapshots a pause is the worst of.
const pauseSnapshots = 10

// snapshotFragmented scatters so many blocks of 4 KiB over a thin LUN and takes snapshots of it
// under load. All but the first are of images that share extents with the one before.
func snapshotFragmented(extents int64) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) (rows []results.Row, err error) {
		l, s, err := b.thinLUN(ctx, fmt.Sprintf("fragmented-%d", extents))
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		if err := scatter(ctx, s.Device, extents); err != nil {
			return nil, err
		}
		fmt.Printf("%d scattered writes of 4 KiB: %.1f s\n", extents, time.Since(begun).Seconds())
		row, err := b.snapshotUnderLoad(ctx, c.name, l, s)
		row.Note = fmt.Sprintf("a LUN of 8 GiB with %d scattered writes of 4 KiB; longest write from the request on for %v, in which the snapshot is marked, until it is copied (copying_worst_ms), and while all of them are deleted; "+
			"the load is 4 KiB random writes, depth 8, in the LUN's first 256 MiB", extents, instantTime)
		return []results.Row{row}, errors.Join(err, l.Delete(ctx))
	}
}

func (b *bench) thinLUN(ctx context.Context, name string) (*rig.LUN, *rig.Served, error) {
	p, err := b.pair(ctx, sysDefault)
	if err != nil {
		return nil, nil, err
	}
	l, err := p.CreateLUN(ctx, name, fragmentedSize)
	if err != nil {
		return nil, nil, err
	}
	s, err := l.Serve(ctx, name, rig.Both)
	if err != nil {
		return nil, nil, err
	}
	b.keepOpen(sysDefault, s.Device)
	return l, s, nil
}

// scatter writes so many blocks at random places.
func scatter(ctx context.Context, d load.Device, writes int64) error {
	r, err := load.Start(load.Workload{Block: 4096, Depth: 64}, d)
	if err != nil {
		return err
	}
	err = r.More(ctx, writes, 5*time.Minute)
	return errors.Join(err, r.Stop(), d.Flush(ctx))
}

// instantTime is how long after the request the pause of a snapshot is looked for. The instant
// comes as soon as the files are made.
const instantTime = 2 * time.Second

// deletionTime is how long after its deletion the blocks of a file are given back at the latest: a
// node closes the file after ten seconds.
const deletionTime = 15 * time.Second

// snapshotUnderLoad takes snapshots, one after the other, and deletes them.
func (b *bench) snapshotUnderLoad(ctx context.Context, name string, l *rig.LUN, s *rig.Served) (row results.Row, err error) {
	r, err := load.Start(load.Workload{Block: 4096, Depth: 8, Span: 256 << 20}, s.Device)
	if err != nil {
		return row, err
	}
	var worst, copying, took, quiet []time.Duration
	var deleting time.Duration
	var ids []string
	x, err := r.SampleWhile(s.Procs, func() error {
		for range pauseSnapshots {
			r.Mark()
			if err := r.Pause(ctx, instantTime); err != nil {
				return err
			}
			quiet = append(quiet, r.Worst())
			r.Mark()
			begun, done := time.Now(), make(chan error, 1)
			go func() {
				id, err := l.Snapshot(ctx)
				ids = append(ids, id)
				done <- err
			}()
			if err := r.Pause(ctx, instantTime); err != nil {
				return errors.Join(err, <-done)
			}
			worst = append(worst, r.Worst())
			if err := <-done; err != nil {
				return err
			}
			took = append(took, time.Since(begun))
			if err := r.More(ctx, opsPerEvent, eventLimit); err != nil {
				return err
			}
			copying = append(copying, r.Worst())
		}
		r.Mark()
		for _, id := range ids {
			if err := l.DeleteSnapshot(ctx, id); err != nil {
				return err
			}
		}
		err := r.Pause(ctx, deletionTime)
		deleting = r.Worst()
		return err
	})
	if err = errors.Join(err, r.Stop()); err != nil {
		return row, err
	}
	row = results.Worst(name, "ms", results.Milliseconds(worst...)).With(x)
	longest := func(list []time.Duration) float64 { return results.Milliseconds(slices.Max(list))[0] }
	row.Values = map[string]float64{"median_ms": results.Median(results.Milliseconds(worst...)), "copying_worst_ms": longest(copying),
		"call_worst_ms": longest(took), "deleting_worst_ms": results.Milliseconds(deleting)[0], "no_event_median_ms": results.Median(results.Milliseconds(quiet...)), "no_event_worst_ms": longest(quiet)}
	row.Series = r.Series().Points()
	return row, nil
}

// minute is how long the load is looked at before and after a snapshot.
const minute = time.Minute

// snapshotMinuteAfter compares the minute after a snapshot of a fragmented LUN with the one before,
// for writes all over the LUN: nearly each of them is the first one to its piece.
func snapshotMinuteAfter(extents int64) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) (rows []results.Row, err error) {
		l, s, err := b.thinLUN(ctx, "minute-after")
		if err != nil {
			return nil, err
		}
		if err := scatter(ctx, s.Device, extents); err != nil {
			return nil, err
		}
		r, err := load.Start(load.Workload{Block: 4096, Depth: 8}, s.Device)
		if err != nil {
			return nil, err
		}
		var before, again, after load.Sample
		var took time.Duration
		id := ""
		err = func() (err error) {
			if before, err = r.Sample(ctx, minute, s.Procs); err != nil {
				return err
			}
			if again, err = r.Sample(ctx, minute, s.Procs); err != nil { // the control
				return err
			}
			begun, done := time.Now(), make(chan error, 1)
			go func() {
				var err error
				id, err = l.Snapshot(ctx)
				took = time.Since(begun)
				done <- err
			}()
			after, err = r.Sample(ctx, minute, s.Procs)
			return errors.Join(err, <-done)
		}()
		if err = errors.Join(err, r.Stop()); err != nil {
			return nil, err
		}
		ratio := func(name string, now, then, control float64) results.Row {
			row := results.Worst(name, "ratio", []float64{now / then}).With(after)
			row.Values = map[string]float64{"before": then, "after": now, "control": control / then, "call_ms": results.Milliseconds(took)[0]}
			row.Note = fmt.Sprintf("the minute after the request for a snapshot, and the one before; control: the minute before that; "+
				"a LUN of 8 GiB with %d scattered writes of 4 KiB; the load is 4 KiB random writes all over it, depth 8", extents)
			return row
		}
		p99 := func(x load.Sample) float64 { return results.Milliseconds(x.Hist.Quantile(0.99))[0] }
		rows = []results.Row{ratio("snapshot_minute_after_p99_ratio", p99(after), p99(again), p99(before)), ratio("snapshot_minute_after_rate_ratio", after.Rate, again.Rate, before.Rate)}
		return rows, errors.Join(l.DeleteSnapshot(ctx, id), l.Delete(ctx))
	}
}

// ageing is what snapshotAged does before it measures.
const (
	agedSnapshots = 10
	agedKept      = 3
	agedRate      = 1000            // operations a second, 70 % writes
	agedWhole     = 5 * time.Minute // a resync under that load; a node that has left for good never ends it
)

// errNotBack: the pair did not become whole again, which is the result.
var errNotBack = errors.New("a node left over a snapshot and did not come back")

// snapshotAged writes at random for -age, with a snapshot every tenth of that of which the last
// three are kept, and then measures. A snapshot that fails, or a node that leaves over it, is part
// of the result.
func snapshotAged(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	l, s, err := b.thinLUN(ctx, "aged")
	if err != nil {
		return nil, err
	}
	r, err := load.Start(load.Workload{Reads: 30, Block: 4096, Depth: 16, Rate: agedRate, Tolerant: true}, s.Device)
	if err != nil {
		return nil, err
	}
	values := map[string]float64{"aged_minutes": b.o.age.Minutes(), "snapshots_failed": 0, "parted": 0}
	err = func() error {
		var kept []string
		for i := range agedSnapshots {
			if err := r.Pause(ctx, b.o.age/agedSnapshots); err != nil {
				return err
			}
			r.Mark()
			id, err := l.Snapshot(ctx)
			if err != nil {
				values["snapshots_failed"]++
				fmt.Println("a snapshot failed:", err)
			} else {
				kept = append(kept, id)
			}
			values[fmt.Sprintf("while_ageing_%02d_ms", i+1)] = results.Milliseconds(r.Worst())[0]
			if err := s.Whole(ctx); err != nil {
				values["parted"]++
				fmt.Println("the pair parted over a snapshot:", err)
				if err := b.awaitWhole(ctx, s, agedWhole); err != nil {
					values["not_back"] = 1
					return errNotBack
				}
			}
			if err := r.More(ctx, opsPerEvent, eventLimit); err != nil {
				return err
			}
			values[fmt.Sprintf("while_ageing_%02d_ms", i+1)] = results.Milliseconds(r.Worst())[0]
			fmt.Printf("snapshot %d of %d, %d operations so far: longest %v\n", i+1, agedSnapshots, r.Done(), r.Worst().Round(time.Millisecond))
			if len(kept) > agedKept {
				if err := l.DeleteSnapshot(ctx, kept[0]); err != nil {
					return err
				}
				kept = kept[1:]
			}
		}
		return nil
	}()
	values["aged_operations"], values["errors"] = float64(r.Done()), float64(r.Errors())
	stopped := r.Stop()
	if err != nil && !errors.Is(err, errNotBack) || stopped != nil {
		return nil, errors.Join(err, stopped)
	}
	var row results.Row
	if err == nil {
		row, err = b.snapshotUnderLoad(ctx, c.name, l, s)
	}
	if err != nil { // the worst that was seen is the figure, then
		fmt.Println("the last snapshots failed:", err)
		values["last_failed"] = 1
		var worst []float64
		for name, v := range values {
			if strings.HasPrefix(name, "while_ageing") {
				worst = append(worst, v)
			}
		}
		row = results.Worst(c.name, "ms", worst)
	}
	if row.Values == nil {
		row.Values = map[string]float64{}
	}
	maps.Copy(row.Values, values)
	row.Note = fmt.Sprintf("a thin LUN of 8 GiB after %v of 4 KiB at random, %d a second, 70 %% writes, %d snapshots of which %d are kept; "+
		"while_ageing: the longest operation around each of them; parted: how often a node left over one, not_back: it did not come back, and the row is what was seen until then", b.o.age, agedRate, agedSnapshots, agedKept)
	return []results.Row{row}, nil
}
