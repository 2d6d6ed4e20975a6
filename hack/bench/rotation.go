package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

const sysRotation = "rotation"

// rotationMembers are over how many members of a backing volume a LUN is spread.
var rotationMembers = []int{1, 2, 4, 8}

// Disks of the curve: what one of them gives, 500 random reads or 16 MiB a second, is far below
// what the nodes do.
const (
	rotationLatency   = 8 * time.Millisecond
	rotationParallel  = 4
	rotationBandwidth = 16 << 20 // bytes a second
	rotationSize      = 256 << 20
)

// rotationCases say what a LUN gains from the members of its backing volume: the curve of
// docs/pools.md.
func rotationCases() (list []testCase) {
	for _, x := range []struct {
		name string
		w    load.Workload
	}{
		{"rotation_randread_8k", load.Workload{Reads: 100, Block: 8 << 10, Depth: 64}},
		{"rotation_seqread_1m", load.Workload{Reads: 100, Block: 1 << 20, Depth: 16, Sequential: true}},
	} {
		var rows []string
		for _, n := range rotationMembers {
			rows = append(rows, fmt.Sprintf("%s_%d_members", x.name, n))
		}
		list = append(list, testCase{name: x.name, rows: strings.Join(rows, " "), asked: true, uses: []string{sysRotation}, run: rotation(x.w)})
	}
	return list
}

// rotationSystem is a pair with eight slow disks at each node, and a LUN over 1, 2, 4 and 8 of
// them.
func (b *bench) rotationSystem(ctx context.Context) (*groups, error) {
	if b.rotation != nil {
		return b.rotation, nil
	}
	o := rig.PairOptions{Name: sysRotation, Size: pairSpace, Args: []string{"--balancing", "off"}, Volumes: map[string][2]string{}}
	var disks []*slowdisk.Disk
	for _, over := range rotationMembers { // disks of its own for each: members are kept alike in what is used of their filesystems
		for m := range over {
			var mounts [2]string
			for i, n := range harness.Names {
				d, err := b.slowDisk(ctx, sysRotation, fmt.Sprintf("%s-%d-%d", n, over, m), rotationSize/int64(over)+768<<20, slowdisk.Knobs{})
				if err != nil {
					return nil, err
				}
				disks, mounts[i] = append(disks, d), d.Mount
			}
			o.Volumes[fmt.Sprintf("over-%d/m%d", over, m)] = mounts
		}
	}
	g := &groups{on: map[string][]load.Device{}}
	var err error
	if g.pair, err = b.startPair(ctx, o); err != nil {
		return nil, err
	}
	for _, over := range rotationMembers {
		name := fmt.Sprintf("over-%d", over)
		l, err := g.pair.CreateLUNAt(ctx, name, rotationSize, "a", name)
		if err != nil {
			return nil, err
		}
		d, err := l.Open(ctx, name, rig.Both)
		if err != nil {
			return nil, err
		}
		b.keepOpen(sysRotation, d)
		if err := load.Fill(ctx, d); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		g.on[groupKey("a", name)] = []load.Device{d}
	}
	for _, d := range disks {
		if err := d.Set(ctx, slowdisk.Knobs{ReadLatency: rotationLatency, MaxParallel: rotationParallel, ReadBandwidth: rotationBandwidth}); err != nil {
			return nil, err
		}
	}
	b.rotation = g
	b.onEnd(sysRotation, func() error { b.rotation = nil; return nil })
	return g, nil
}

func rotation(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		g, err := b.rotationSystem(ctx)
		if err != nil {
			return nil, err
		}
		var points []point
		for _, over := range rotationMembers {
			points = append(points, point{fmt.Sprintf("%s_%d_members", c.name, over), g.on[groupKey("a", fmt.Sprintf("over-%d", over))]})
		}
		return b.curve(ctx, g, w, points, func(context.Context) error { return rig.DropCaches() },
			fmt.Sprintf("one LUN, depth %d; each disk takes %v for a read, serves %d side by side and gives %d MiB/s; caches dropped before each measurement; the peer is the first row",
				w.Depth, rotationLatency, rotationParallel, rotationBandwidth>>20))
	}
}
