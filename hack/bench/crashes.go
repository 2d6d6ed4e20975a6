package main

import (
	"context"
	"errors"
	"syscall"

	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// crashes is how many there are of a kind: the worst of 20 is what counts.
func (b *bench) crashes() int {
	if b.o.quick {
		return 3
	}
	return 20
}

// crashPause kills the owner's process, which its supervisor reaps.
func crashPause(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	return b.ownerGoes(ctx, c.name, "the owner's process is killed; its supervisor reaps it and reports that", func(o *owner) error { return o.pair.Crash(0) }, func(o *owner) error {
		// A new supervisor: the old one would wait longer after each crash.
		return errors.Join(o.pair.Kill(0), o.pair.StartNode(0))
	})
}

// killPause kills the supervisor, which takes the process with it, as the end of a container does.
func killPause(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	return b.ownerGoes(ctx, c.name, "the owner is killed together with its supervisor: its partner waits for the lease",
		func(o *owner) error { return o.pair.Kill(0) }, func(o *owner) error { return o.pair.StartNode(0) })
}

// silentPause stops the owner's process: nothing comes from it any more, and nothing says why.
func silentPause(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	return b.ownerGoes(ctx, c.name, "the owner's process is stopped (SIGSTOP): its partner waits for the lease", func(o *owner) (err error) {
		if o.pid, err = o.pair.Process(0); err != nil {
			return err
		}
		return syscall.Kill(o.pid, syscall.SIGSTOP)
	}, func(o *owner) error { return syscall.Kill(o.pid, syscall.SIGCONT) })
}

// owner is the node that goes.
type owner struct {
	pair *rig.Pair
	pid  int // of the process that was stopped
}

// ownerGoes has the owner, node a, go again and again under load. back makes it come back.
func (b *bench) ownerGoes(ctx context.Context, name, note string, goes, back func(*owner) error) ([]results.Row, error) {
	p, l, s, err := b.eventLUNOf(ctx, sysSupervised, name[:len(name)-len("_pause_ms")], 128<<20)
	if err != nil {
		return nil, err
	}
	o := &owner{pair: p}
	ready := func() error {
		ctx, cancel := context.WithTimeout(ctx, wholeLimit)
		defer cancel()
		if err := p.WaitInSync(ctx); err != nil {
			return err
		}
		if err := p.WaitSupervisors(ctx); err != nil {
			return err
		}
		return l.Transfer(ctx, "a")
	}
	if err := ready(); err != nil {
		return nil, err
	}
	seen, err := pauses(ctx, s, b.crashes(), func(context.Context, int) error { return goes(o) }, func(context.Context, int) error {
		if err := back(o); err != nil {
			return err
		}
		return ready()
	})
	if err != nil {
		return nil, err
	}
	return []results.Row{eventRow(name, seen, note)}, nil
}
