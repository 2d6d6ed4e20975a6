package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/cpulimit"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// groupLoads are random reads of 8 KiB as a database makes them, with 30 % writes, and only writes.
var groupLoads = []struct {
	name string
	w    load.Workload
}{
	{"read", load.Workload{Reads: 100, Block: groupBlock}},
	{"70_30", load.Workload{Reads: 70, Block: groupBlock}},
	{"write", load.Workload{Block: groupBlock}},
}

const (
	groupBlock = 8 << 10
	// groupDepth is how many requests are in flight for each LUN: what open-iscsi lets a LUN have.
	groupDepth = 32
	// groupCPU is the share of one processor that each node may use, so that client and nodes
	// together leave a part of two processors idle.
	groupCPU = 0.3
)

// groupVolumes are the further backing volumes of a node.
var groupVolumes = []string{"second", "third", "fourth"}

// Systems of the curves: LUNs that the page cache holds, and LUNs on slow disks.
const (
	sysGroups     = "groups"
	sysGroupsCold = "groups_cold"
)

// groupCases say how much more several LUNs do than one: the curves of
// docs/consistency-groups.md.
func groupCases() (list []testCase) {
	for _, l := range groupLoads {
		prefix := "group_" + l.name + "_"
		var rows []string
		for _, n := range []int{2, 4, 8, 16} {
			rows = append(rows, fmt.Sprintf("%s%d_luns_one_node", prefix, n), fmt.Sprintf("%s%d_luns_both_nodes", prefix, n))
		}
		list = append(list, testCase{name: prefix + "luns", rows: strings.Join(append(rows, prefix+"1_lun"), " "), asked: true, uses: []string{sysGroups}, run: groupCurve(l.w)})
		if l.name == "write" {
			continue
		}
		list = append(list, testCase{name: prefix + "volumes", rows: prefix + "16_luns_2_volumes " + prefix + "16_luns_4_volumes", asked: true, uses: []string{sysGroups},
			run: groupVolumeCurve(l.w)})
	}
	return append(list,
		testCase{name: "group_read_cold", rows: "group_read_cold_1_lun group_read_cold_2_luns_both_nodes group_read_cold_4_luns_both_nodes group_read_cold_8_luns_both_nodes " +
			"group_read_cold_16_luns_both_nodes group_read_cold_16_luns_2_volumes group_read_cold_16_luns_4_volumes", asked: true, uses: []string{sysGroupsCold}, run: groupCold},
		testCase{name: "group_read_no_limit", rows: "group_read_no_limit_4_luns_both_nodes group_read_no_limit_16_luns_both_nodes", asked: true, uses: []string{sysGroups}, run: groupNoLimit})
}

// groups is a pair with LUNs of each owner on each backing volume.
type groups struct {
	pair   *rig.Pair
	limits [2]*cpulimit.Group // nil: the nodes cannot be limited
	on     map[string][]load.Device
}

// key of the LUNs of an owner on a backing volume.
func groupKey(owner, volume string) string { return owner + "/" + volume }

// luns are n LUNs: of node a, or of both, half of them each; over so many volumes.
func (g *groups) luns(n int, both bool, volumes int) (list []load.Device) {
	owners := []string{"a"}
	if both {
		owners = []string{"a", "b"}
	}
	each := n / len(owners) / volumes
	for _, v := range append([]string{""}, groupVolumes...)[:volumes] {
		for _, o := range owners {
			list = append(list, g.on[groupKey(o, v)][:each]...)
		}
	}
	return list
}

// limit bounds the processors of both nodes; 0: no bound.
func (g *groups) limit(processors float64) error {
	return errors.Join(g.limits[0].Limit(processors), g.limits[1].Limit(processors))
}

// groupSystem starts the pair, once, and fills its LUNs.
func (b *bench) groupSystem(ctx context.Context) (*groups, error) {
	if b.groups != nil {
		return b.groups, nil
	}
	g := &groups{on: map[string][]load.Device{}}
	// Work is not evened out meanwhile: LUNs stay where the case wants them.
	o := rig.PairOptions{Name: sysGroups, Size: pairSpace, Args: []string{"--balancing", "off"}, Volumes: map[string][2]string{}}
	if b.o.profile != "" {
		o.Args = append(o.Args, "--profiling")
	}
	for i, n := range harness.Names {
		limit, err := cpulimit.New("gemel-bench-" + n)
		if err != nil {
			return nil, err
		}
		b.onEnd(sysGroups, limit.Close)
		g.limits[i], o.Wrap[i] = limit, limit.Wrap()
	}
	for _, v := range groupVolumes {
		var dirs [2]string
		for i, n := range harness.Names {
			var err error
			if dirs[i], err = b.rig.Filesystem(ctx, sysGroups+"-"+n+"-"+v, rig.XFS, pairSpace); err != nil {
				return nil, err
			}
		}
		o.Volumes[v] = dirs
	}
	var err error
	if g.pair, err = b.startPair(ctx, o); err != nil {
		return nil, err
	}
	counts := map[string]int{"": 16, groupVolumes[0]: 4, groupVolumes[1]: 2, groupVolumes[2]: 2}
	if err := b.groupLUNs(ctx, sysGroups, g, b.o.size/8, counts); err != nil {
		return nil, err
	}
	b.groups = g
	b.onEnd(sysGroups, func() error { b.groups = nil; return nil })
	return g, nil
}

// groupLUNs makes so many LUNs of each owner on each volume, and fills them.
func (b *bench) groupLUNs(ctx context.Context, system string, g *groups, size int64, counts map[string]int) error {
	begun, all := time.Now(), 0
	for volume, count := range counts {
		for _, owner := range harness.Names {
			for i := range count {
				name := strings.Trim(fmt.Sprintf("%s-%s-%d", volume, owner, i), "-")
				l, err := g.pair.CreateLUNAt(ctx, name, size, owner, volume)
				if err != nil {
					return err
				}
				d, err := l.Open(ctx, name, rig.Both)
				if err != nil {
					return err
				}
				b.keepOpen(system, d)
				if err := load.Fill(ctx, d); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				g.on[groupKey(owner, volume)] = append(g.on[groupKey(owner, volume)], d)
				all++
			}
		}
	}
	fmt.Printf("filled %d LUNs of %d MiB with random data and read them back: %.1f s\n", all, size>>20, time.Since(begun).Seconds())
	return nil
}

// point is one of a curve.
type point struct {
	row     string
	devices []load.Device
}

// curve measures points in interleaved rounds; each is compared with the first one, which is
// measured twice in each round. The depth is groupDepth for each LUN, unless w says another one.
func (b *bench) curve(ctx context.Context, g *groups, w load.Workload, points []point, before func(context.Context) error, note string) ([]results.Row, error) {
	served := &rig.Served{Name: points[0].row, Flags: g.pair.Describe(), Procs: g.pair.Procs(), Whole: g.pair.InSync}
	list := append([]point{points[0]}, points...)
	figures := make([]results.Figures, len(list))
	depth := w.Depth
	for round := range b.o.rounds {
		for _, i := range order(round, len(list)) {
			w.Depth = cmp.Or(depth, groupDepth*len(list[i].devices))
			s, err := b.measure(ctx, comparison{w: w, before: before}, arm{served: served, devices: list[i].devices})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list[i].row, err)
			}
			figures[i].Name, figures[i].Flags = list[i].row, served.Flags
			figures[i].Add(s.Rate, s)
		}
	}
	control := results.ControlOf(&figures[1], &figures[0])
	first := results.Alone(points[0].row, w.Unit(), &figures[1], &figures[0])
	rows := []results.Row{first}
	for i, p := range points[1:] {
		rows = append(rows, results.Against(p.row, w.Unit(), &figures[i+2], nil, &figures[1], false).Controlled(control))
	}
	for i := range rows {
		rows[i].Note = note
	}
	return rows, nil
}

func limitNote() string {
	return fmt.Sprintf("8 KiB, %d requests in flight for each LUN; each node may use %.1f of a processor (counted every %v), so that the client is not the limit; the peer is the first row", groupDepth, groupCPU, cpulimit.Period)
}

// limited is the pair with its nodes' processors limited.
func (b *bench) limited(ctx context.Context, processors float64) (*groups, error) {
	g, err := b.groupSystem(ctx)
	if errors.Is(err, cpulimit.ErrNone) {
		return nil, fmt.Errorf("%w: %w", errPeer, err)
	}
	if err != nil {
		return nil, err
	}
	return g, g.limit(processors)
}

// groupCurve is one LUN, and 2, 4, 8 and 16 of one node and of both.
func groupCurve(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) (rows []results.Row, err error) {
		g, err := b.limited(ctx, groupCPU)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, g.limit(0)) }()
		prefix := strings.TrimSuffix(c.name, "luns")
		points := []point{{prefix + "1_lun", g.luns(1, false, 1)}}
		for _, n := range []int{2, 4, 8, 16} {
			points = append(points, point{fmt.Sprintf("%s%d_luns_one_node", prefix, n), g.luns(n, false, 1)},
				point{fmt.Sprintf("%s%d_luns_both_nodes", prefix, n), g.luns(n, true, 1)})
		}
		if rows, err = b.curve(ctx, g, w, points, nil, limitNote()); err == nil && b.o.profile != "" {
			err = errors.Join(b.profileGroup(ctx, g, w, points[0]), b.profileGroup(ctx, g, w, points[len(points)-1]))
		}
		return rows, err
	}
}

// volumePoints are 16 LUNs of both nodes over 1, 2 and 4 backing volumes.
func volumePoints(g *groups, prefix string) []point {
	return []point{{prefix + "16_luns_1_volume", g.luns(16, true, 1)}, {prefix + "16_luns_2_volumes", g.luns(16, true, 2)}, {prefix + "16_luns_4_volumes", g.luns(16, true, 4)}}
}

func groupVolumeCurve(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) (rows []results.Row, err error) {
		g, err := b.limited(ctx, groupCPU)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, g.limit(0)) }()
		return b.curve(ctx, g, w, volumePoints(g, strings.TrimSuffix(c.name, "volumes")), nil, limitNote()+"; both nodes")
	}
}

// groupNoLimit is the same without a limit of processors: what two processors allow client and
// nodes together.
func groupNoLimit(ctx context.Context, b *bench, _ testCase) ([]results.Row, error) {
	g, err := b.limited(ctx, 0)
	if err != nil {
		return nil, err
	}
	points := []point{{"group_read_no_limit_1_lun", g.luns(1, false, 1)}, {"group_read_no_limit_4_luns_both_nodes", g.luns(4, true, 1)},
		{"group_read_no_limit_16_luns_both_nodes", g.luns(16, true, 1)}}
	return b.curve(ctx, g, groupLoads[0].w, points, nil,
		fmt.Sprintf("8 KiB, %d requests in flight for each LUN; client and nodes share all %d processors; the peer is the first row", groupDepth, runtime.NumCPU()))
}

// groupCold reads 1 to 16 LUNs of both nodes whose disks take 20 ms for a read, and serve any
// number of reads side by side, and 16 LUNs over 1, 2 and 4 backing volumes of such disks.
func groupCold(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	const latency = 20 * time.Millisecond
	size := b.o.size / 16
	o := rig.PairOptions{Name: sysGroupsCold, Args: []string{"--balancing", "off"}, Volumes: map[string][2]string{}}
	var disks []*slowdisk.Disk
	for _, v := range append([]string{""}, groupVolumes...) {
		var dirs [2]string
		for i, n := range harness.Names {
			d, err := b.slowDisk(ctx, sysGroupsCold, strings.Trim(n+"-"+v, "-"), 16*size+768<<20, slowdisk.Knobs{})
			if err != nil {
				return nil, err
			}
			disks, dirs[i] = append(disks, d), d.Mount
		}
		if v == "" {
			o.Dirs = dirs
			continue
		}
		o.Volumes[v] = dirs
	}
	g := &groups{on: map[string][]load.Device{}}
	var err error
	if g.pair, err = b.startPair(ctx, o); err != nil {
		return nil, err
	}
	if err := b.groupLUNs(ctx, sysGroupsCold, g, size, map[string]int{"": 8, groupVolumes[0]: 4, groupVolumes[1]: 2, groupVolumes[2]: 2}); err != nil {
		return nil, err
	}
	for _, d := range disks {
		if err := d.Set(ctx, slowdisk.Knobs{ReadLatency: latency}); err != nil {
			return nil, err
		}
	}
	points := []point{{c.name + "_1_lun", g.luns(1, false, 1)}}
	for _, n := range []int{2, 4, 8, 16} {
		points = append(points, point{fmt.Sprintf("%s_%d_luns_both_nodes", c.name, n), g.luns(n, true, 1)})
	}
	points = append(points, volumePoints(g, c.name+"_")[1:]...)
	return b.curve(ctx, g, groupLoads[0].w, points, func(context.Context) error { return rig.DropCaches() },
		fmt.Sprintf("8 KiB, %d requests in flight for each LUN of both nodes; each read of a disk takes %v, any number side by side; caches dropped before each measurement; the peer is the first row", groupDepth, latency))
}
