package main

import (
	"context"
	"sync/atomic"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// sessionCases are a host with four sessions to each portal beside one with one session: with much
// under way, and where several sessions cost the most, which is one block that is written again and
// again, each time after the time before.
func sessionCases() []testCase {
	deep, hot := load.Workload{Block: 4096, Depth: 128}, load.Workload{Block: 4096, Depth: 1, Span: 4096}
	ours := func(ctx context.Context, l *rig.LUN) (load.Device, error) {
		return l.OpenSessions(ctx, "several-sessions", rig.Both, 4)
	}
	inTurn := func(ctx context.Context, l *rig.LUN) (load.Device, error) {
		t := &turns{}
		for range 4 {
			d, err := l.Open(ctx, "several-sessions", rig.Both)
			if err != nil {
				_ = t.Close(context.WithoutCancel(ctx))
				return nil, err
			}
			t.list = append(t.list, d)
		}
		return t, nil
	}
	return []testCase{
		{name: "sessions_write_4k_qd128", uses: []string{sysDefault}, run: sessionsBesideOne(deep, ours, "4 sessions of one host to each portal; the peer is one")},
		{name: "sessions_read_4k_qd128", uses: []string{sysDefault}, run: sessionsBesideOne(load.Workload{Reads: 100, Block: 4096, Depth: 128}, ours, "4 sessions of one host to each portal; the peer is one")},
		{name: "sessions_rewrite_4k_qd1", uses: []string{sysDefault}, run: sessionsBesideOne(hot, ours, "one block, by our initiator, which stays with one of its 4 sessions; the peer has one")},
		{name: "sessions_rewrite_4k_qd1_in_turn", uses: []string{sysDefault}, run: sessionsBesideOne(hot, inTurn, "one block, over 4 sessions of one host in turn, as dm-multipath does; the peer is one")},
	}
}

// sessionsBesideOne loads a LUN of its own over several sessions of a host; the peer is one
// session of another host.
func sessionsBesideOne(w load.Workload, open func(context.Context, *rig.LUN) (load.Device, error), note string) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		l, one, err := b.oneSession(ctx, c.name)
		if err != nil {
			return nil, err
		}
		several := *one
		several.Name = "4_sessions"
		if several.Device, err = open(ctx, l); err != nil {
			return nil, err
		}
		b.keepOpen(sysDefault, several.Device)
		return b.compare(ctx, comparison{name: c.name, w: w, arms: []arm{{served: &several}, {served: one}}, note: note})
	}
}

// oneSession opens a filled LUN of its own over one session to each portal.
func (b *bench) oneSession(ctx context.Context, lun string) (*rig.LUN, *rig.Served, error) {
	p, err := b.pair(ctx, sysDefault)
	if err != nil {
		return nil, nil, err
	}
	l, err := p.CreateLUN(ctx, lun, b.o.size)
	if err != nil {
		return nil, nil, err
	}
	one, err := l.Serve(ctx, "one_session", rig.Both)
	if err != nil {
		return nil, nil, err
	}
	b.keepOpen(sysDefault, one.Device)
	return l, one, b.fill(ctx, one)
}

// turns are sessions of one host that take turns, whatever each has under way.
type turns struct {
	list []*initiator.Device
	n    atomic.Uint32
}

func (t *turns) next() *initiator.Device { return t.list[int(t.n.Add(1))%len(t.list)] }

// Submit implements load.Device.
func (t *turns) Submit(io *initiator.IO) error { return t.next().Submit(io) }

// Size implements load.Device.
func (t *turns) Size() int64 { return t.list[0].Size() }

// Flush implements load.Device.
func (t *turns) Flush(ctx context.Context) error { return t.next().Flush(ctx) }

// ReadAt implements load.Device.
func (t *turns) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return t.next().ReadAt(ctx, p, off)
}

// WriteAt implements load.Device.
func (t *turns) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	return t.next().WriteAt(ctx, p, off)
}

// Close implements load.Device.
func (t *turns) Close(ctx context.Context) (err error) {
	for _, d := range t.list {
		if e := d.Close(ctx); e != nil {
			err = e
		}
	}
	return err
}
