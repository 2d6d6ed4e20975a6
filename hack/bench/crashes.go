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

// crashPause kills the owner's process, which its supervisor reaps. It is the second crash within a
// minute: the supervisor waits for a second before it starts the process again, so that what is
// measured is the pause until the partner serves, without the resync that follows.
func crashPause(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	return b.ownerGoes(ctx, c.name, "the owner's process is killed; its supervisor reaps it and reports that", ownerEvent{before: crash, goes: crash, back: renew})
}

// crashResync is the first crash: the process is started again at once, and the resync of what was
// written meanwhile is part of what is measured.
func crashResync(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	return b.ownerGoes(ctx, c.name, "the owner's process is killed and is started again at once: the pause, or the longest write during the resync that follows",
		ownerEvent{goes: crash, back: renew})
}

func crash(p *rig.Pair) error { return p.Crash(0) }

// renew gives the node a new supervisor: the old one would wait longer after each crash.
func renew(p *rig.Pair) error { return errors.Join(p.Kill(0), p.StartNode(0)) }

// killPause kills the supervisor, which takes the process with it, as the end of a container does.
func killPause(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	return b.ownerGoes(ctx, c.name, "the owner is killed together with its supervisor: its partner waits for the lease",
		ownerEvent{goes: func(p *rig.Pair) error { return p.Kill(0) }, back: func(p *rig.Pair) error { return p.StartNode(0) }})
}

// silentPause stops the owner's process: nothing comes from it any more, and nothing says why.
func silentPause(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	return b.ownerGoes(ctx, c.name, "the owner's process is stopped (SIGSTOP): its partner waits for the lease", ownerEvent{goes: send(syscall.SIGSTOP), back: send(syscall.SIGCONT)})
}

// send gives the owner's process a signal.
func send(s syscall.Signal) func(*rig.Pair) error {
	return func(p *rig.Pair) error { return p.SignalProcess(0, s) }
}

// ownerEvent is how the owner goes and comes back; before, if there is one, is a loss that is not
// measured.
type ownerEvent struct{ before, goes, back func(*rig.Pair) error }

// ownerGoes has the owner, node a, go again and again under load.
func (b *bench) ownerGoes(ctx context.Context, name, note string, e ownerEvent) ([]results.Row, error) {
	p, l, s, err := b.eventLUNOf(ctx, sysSupervised, name[:len(name)-len("_pause_ms")], 128<<20)
	if err != nil {
		return nil, err
	}
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
	prepare := func() error {
		err := ready()
		if err == nil && e.before != nil {
			if err = e.before(p); err == nil {
				err = ready()
			}
		}
		return err
	}
	if err := prepare(); err != nil {
		return nil, err
	}
	seen, err := pauses(ctx, s, b.crashes(), func(context.Context, int) error { return e.goes(p) }, func(context.Context, int) error {
		if err := e.back(p); err != nil {
			return err
		}
		return prepare()
	})
	if err != nil {
		return nil, err
	}
	return []results.Row{eventRow(name, seen, note)}, nil
}
