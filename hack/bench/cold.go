package main

import (
	"context"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// coldCases read from the disk: caches are dropped before each measurement, and the LUN is larger
// than one can cache. The rows *_to_disk compare with the LUN's own file, read by the load
// generator: how much the disk gives.
func coldCases() (list []testCase) {
	for _, x := range []struct {
		name string
		w    load.Workload
	}{
		{"randread_4k_qd1_cold", load.Workload{Reads: 100, Block: 4096, Depth: 1}},
		{"randread_4k_qd32_cold", load.Workload{Reads: 100, Block: 4096, Depth: 32}},
		{"randread_64k_qd16_cold", load.Workload{Reads: 100, Block: 64 << 10, Depth: 16}},
		{"mixed_70_30_4k_qd32_cold", load.Workload{Reads: 70, Block: 4096, Depth: 32}},
	} {
		list = append(list, testCase{name: x.name, quick: x.name == "randread_4k_qd32_cold", uses: []string{sysDefault, sysTgt}, run: cold(x.w)})
	}
	return list
}

// coldSize is what a measurement of half a second does not read a tenth of.
func (b *bench) coldSize() int64 {
	if b.o.quick {
		return 1 << 30
	}
	return 2 << 30
}

func cold(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		arms, err := b.coldArms(ctx, w.Reads == 100)
		if err != nil {
			return nil, err
		}
		return b.compare(ctx, comparison{name: c.name, w: w, arms: arms, before: func(context.Context) error { return rig.DropCaches() },
			note: "page caches dropped before each measurement, a LUN larger than a measurement reads; the disk is this machine's"})
	}
}

// coldArms opens the large LUNs, filled, once; and the file of ours for what only reads.
func (b *bench) coldArms(ctx context.Context, reads bool) (arms []arm, err error) {
	systems := []string{sysDefault, sysTgt}
	if b.o.base != "" {
		systems = append(systems, sysBase)
	}
	for _, system := range systems {
		s, err := b.coldSystem(ctx, system)
		if err != nil {
			return nil, err
		}
		arms = append(arms, arm{served: s})
	}
	if reads {
		arms = append(arms, arm{served: b.served[sysDefault+coldDiskKey]})
	}
	return arms, nil
}

// Keys of what is served cold; they begin with the name of the system that it ends with.
const (
	coldKey     = "/cold"
	coldDiskKey = "/cold-disk"
)

// coldSystem opens a system's large LUN, filled, and the file of ours, once.
func (b *bench) coldSystem(ctx context.Context, system string) (s *rig.Served, err error) {
	if s := b.served[system+coldKey]; s != nil {
		return s, nil
	}
	if system == sysTgt {
		s, err = b.tgtLUN(ctx, b.coldSize())
	} else {
		s, err = b.pairLUN(ctx, system, "cold", b.coldSize())
	}
	if err != nil {
		return nil, err
	}
	b.keepOpen(system, s.Device)
	if err := b.fill(ctx, s); err != nil {
		return nil, err
	}
	if system == sysDefault {
		d, err := s.File()
		if err != nil {
			return nil, err
		}
		b.keepOpen(system, d.Device)
		b.served[system+coldDiskKey] = d
	}
	b.served[system+coldKey] = s
	return s, nil
}
