package main

import (
	"context"
	"fmt"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/nbd"
	"github.com/gemel-storage/gemel/internal/testkit/bench/qsd"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// startQSD runs qemu-storage-daemon's mirror on two filesystems.
func (b *bench) startQSD(ctx context.Context, name string) (*rig.Served, error) {
	if err := qsd.Available(); err != nil {
		return nil, fmt.Errorf("%w: %w", errPeer, err)
	}
	var dirs [2]string
	for i, n := range harness.Names {
		var err error
		if dirs[i], err = b.rig.Filesystem(ctx, name+"-"+n, rig.XFS, pairSpace); err != nil {
			return nil, err
		}
	}
	q, err := qsd.Start(ctx, dirs[0], dirs[1], b.o.size, qsd.Options{TLS: name == sysQSDTLS})
	if err != nil {
		return nil, err
	}
	b.onEnd(name, q.Close)
	d, err := nbd.Dial(ctx, "tcp", q.Address, q.Export)
	if err != nil {
		return nil, err
	}
	return &rig.Served{Device: d, Name: name, Flags: q.Flags, Procs: []load.Process{{Name: "a", PID: q.PIDs[0]}, {Name: "b", PID: q.PIDs[1]}}}, nil
}

// tgtLUN makes a LUN of tgtd, which it starts on a filesystem of its own, once.
func (b *bench) tgtLUN(ctx context.Context, size int64) (*rig.Served, error) {
	t := b.tgtd
	if t == nil {
		dir, err := b.rig.Filesystem(ctx, sysTgt, rig.XFS, pairSpace)
		if err != nil {
			return nil, err
		}
		if t, err = b.startTgt(ctx, sysTgt, dir); err != nil {
			return nil, err
		}
		b.tgtd = t
		b.onEnd(sysTgt, func() error { b.tgtd = nil; return nil })
	}
	return t.Serve(ctx, size)
}

// startTgt starts tgtd and ends it with a system.
func (b *bench) startTgt(ctx context.Context, system, dir string) (*rig.Tgt, error) {
	if err := rig.TgtAvailable(); err != nil {
		return nil, fmt.Errorf("%w: %w", errPeer, err)
	}
	t, err := rig.StartTgt(ctx, dir)
	if err != nil {
		return nil, err
	}
	b.onEnd(system, func() error { t.Close(); return nil })
	return t, nil
}

func (b *bench) startHops(ctx context.Context, name string) (*rig.Served, error) {
	s, stop, err := b.rig.StartHops(ctx, name == sysHopsTLS)
	if err != nil {
		return nil, err
	}
	b.onEnd(name, func() error { stop(); return nil })
	return s, nil
}
