package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// eventCases are a load around something that happens: ownership moves, an owner dies, a partner is
// lost and comes back, copies are compared, a snapshot is taken.
func eventCases() []testCase {
	return []testCase{
		{name: "partner_lost_qd64", rows: "write_during_resync_qd64 partner_lost_pause_ms", quick: true, uses: []string{sysEvents}, run: partnerLost},
		{name: "write_during_scrub_qd32", uses: []string{sysEvents}, run: duringScrub},
		{name: "write_during_snapshot_ms", uses: []string{sysEvents}, run: duringSnapshot},
		{name: "transfer_pause_ms", quick: true, uses: []string{sysEvents}, run: transferPause},
		{name: "transfer_pause_100_ms", asked: true, uses: []string{sysEvents}, run: hundredTransfers},
		{name: "crash_pause_ms", quick: true, uses: []string{sysSupervised}, run: crashPause},
		{name: "crash_resync_pause_ms", uses: []string{sysSupervised}, run: crashResync},
		{name: "node_killed_pause_ms", quick: true, uses: []string{sysSupervised}, run: killPause},
		{name: "node_silent_pause_ms", uses: []string{sysSupervised}, run: silentPause},
	}
}

// eventWrites is the load around events.
var eventWrites = load.Workload{Block: 4096, Depth: 8}

const (
	// opsPerEvent must complete after each event before the next.
	opsPerEvent = 1000
	// eventLimit bounds how long that may take.
	eventLimit = 2 * time.Minute
)

// events is how many there are of a kind.
func (b *bench) events() int {
	if b.o.quick {
		return 3
	}
	return 10
}

// eventLUN makes a LUN for events on their pair, filled, and opens it.
func (b *bench) eventLUN(ctx context.Context, name string, size int64) (*rig.Pair, *rig.LUN, *rig.Served, error) {
	return b.eventLUNOf(ctx, sysEvents, name, size)
}

func (b *bench) eventLUNOf(ctx context.Context, system, name string, size int64) (*rig.Pair, *rig.LUN, *rig.Served, error) {
	p, err := b.pair(ctx, system)
	if err != nil {
		return nil, nil, nil, err
	}
	l, err := p.CreateLUN(ctx, name, size)
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := l.Serve(ctx, name, rig.Both)
	if err != nil {
		return nil, nil, nil, err
	}
	b.keepOpen(system, s.Device)
	return p, l, s, b.fill(ctx, s)
}

// partnerLostSize keeps the resync of each round short: random writes dirty all of it.
const partnerLostSize = 128 << 20

// partnerLost writes to a whole pair, then to what is left of it (write-through), then while the
// other one is copied to, in turns; and does so with the commit that is compared with.
func partnerLost(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	systems := []string{sysEvents}
	if b.o.base != "" {
		systems = append(systems, sysBase)
	}
	w := load.Workload{Block: 4096, Depth: 64}
	var losers []*losing
	for _, system := range systems {
		p, _, s, err := b.eventLUNOf(ctx, system, "partner-lost", partnerLostSize)
		if err != nil {
			return nil, err
		}
		l := &losing{pair: p, served: s}
		for i, name := range []string{"in_sync", "in_sync", "alone", "resync"} {
			l.figures[i].Name, l.figures[i].Flags = name, s.Flags
		}
		if system == sysBase {
			l.figures[2].Name = system
		}
		losers = append(losers, l)
	}
	for round := range b.o.rounds {
		for _, i := range order(round, len(losers)) {
			if err := losers[i].round(ctx, b, w); err != nil {
				return nil, err
			}
		}
	}
	figures := &losers[0].figures
	control := results.ControlOf(&figures[0], &figures[1])
	lost := results.Against(c.name, w.Unit(), &figures[2], nil, &figures[0], false).Controlled(control)
	lost.Note = "the survivor alone: every write goes to disk before it is acknowledged; the peer is the same load on the whole pair, just before"
	resync := results.Against("write_during_resync_qd64", w.Unit(), &figures[3], nil, &figures[0], false).Controlled(control)
	resync.Note = "from the start of the lost node's process until both are in sync; the peer is the whole pair, before"
	gone := results.Worst("partner_lost_pause_ms", "ms", results.Milliseconds(losers[0].pauses...))
	gone.Note = "the partner is killed; longest write that overlaps it, worst of all rounds"
	rows := []results.Row{lost, resync, gone}
	for _, l := range losers[1:] {
		row := results.Against(c.name+"_to_base", w.Unit(), &figures[2], nil, &l.figures[2], false).Controlled(control)
		row.Note = "the survivor alone, and that of the commit that is compared with"
		rows = append(rows, row)
	}
	return rows, nil
}

// losing is a pair that loses its partner again and again.
type losing struct {
	pair    *rig.Pair
	served  *rig.Served
	figures [4]results.Figures // whole, whole again, alone, resync
	pauses  []time.Duration
}

func (l *losing) round(ctx context.Context, b *bench, w load.Workload) error {
	p := l.pair
	r, err := load.Start(w, l.served.Device)
	if err != nil {
		return err
	}
	pause, err := func() (time.Duration, error) {
		for i := range 2 {
			x, err := r.Sample(ctx, b.o.time, p.Procs())
			if err != nil {
				return 0, err
			}
			l.figures[i].Add(x.Rate, x)
		}
		r.Mark()
		if err := p.Kill(1); err != nil {
			return 0, err
		}
		if err := r.More(ctx, opsPerEvent, eventLimit); err != nil {
			return 0, err
		}
		pause := r.Worst()
		x, err := r.Sample(ctx, b.o.time, p.Procs()[:1])
		if err != nil {
			return 0, err
		}
		l.figures[2].Add(x.Rate, x)
		if err := p.StartNode(1); err != nil {
			return 0, err
		}
		x, err = r.SampleWhile(p.Procs(), func() error {
			ctx, cancel := context.WithTimeout(ctx, wholeLimit)
			defer cancel()
			return p.WaitInSync(ctx)
		})
		if err != nil {
			return 0, err
		}
		l.figures[3].Add(x.Rate, x)
		return pause, nil
	}()
	if err = errors.Join(err, r.Stop()); err != nil {
		return err
	}
	l.pauses = append(l.pauses, pause)
	return l.served.Flush(ctx)
}

// duringScrub compares a load while both copies are being compared with the same load at other
// times.
func duringScrub(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	p, l, s, err := b.eventLUN(ctx, "scrubbed", b.o.size)
	if err != nil {
		return nil, err
	}
	quiet, scrubbed := *s, *s
	quiet.Name, scrubbed.Name = "no_scrub", "scrub"
	// A scrub at full rate lasts longer than a measurement. It is started before the measurements
	// with a scrub, and ends before the others.
	scrub := func(ctx context.Context, on bool) error {
		ctx, cancel := context.WithTimeout(ctx, wholeLimit)
		defer cancel()
		for {
			st, err := p.Status(ctx, 0)
			if err != nil {
				return err
			}
			active := st.Scrub != nil && st.Scrub.Active
			if active == on {
				return nil
			}
			if on {
				req := &targetv1.ScrubRequest{Uuids: []string{l.UUID}, BytesPerSecond: uint64(float64(b.o.size) / (2 * b.o.time.Seconds()))}
				if _, err := p.Client(0).Scrub(ctx, req); err != nil {
					return err
				}
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	var figures [3]results.Figures
	figures[0].Name, figures[1].Name, figures[2].Name = quiet.Name, quiet.Name, scrubbed.Name
	w := load.Workload{Block: 4096, Depth: 32}
	for range b.o.rounds {
		for i := range figures {
			if err := scrub(ctx, i == 2); err != nil {
				return nil, fmt.Errorf("scrub: %w", err)
			}
			x, err := b.measure(ctx, comparison{name: c.name, w: w}, arm{served: s})
			if err != nil {
				return nil, err
			}
			figures[i].Add(x.Rate, x)
		}
	}
	row := results.Against(c.name, w.Unit(), &figures[2], nil, &figures[0], false).Controlled(results.ControlOf(&figures[0], &figures[1]))
	row.Note = "both copies are compared, so fast that it takes twice as long as a measurement; the peer is the same load without"
	return []results.Row{row}, nil
}

// duringSnapshot is the pause of a snapshot of a LUN in few extents: the best case of
// snapshot_pause_ms.
func duringSnapshot(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	_, l, s, err := b.eventLUN(ctx, "snapped", b.o.size)
	if err != nil {
		return nil, err
	}
	var last string
	seen, err := pauses(ctx, s, b.events(), func(ctx context.Context, _ int) (err error) {
		last, err = l.Snapshot(ctx)
		return err
	}, func(ctx context.Context, _ int) error { return l.DeleteSnapshot(ctx, last) })
	if err != nil {
		return nil, err
	}
	return []results.Row{eventRow(c.name, seen, fmt.Sprintf("a snapshot of a LUN of %d MiB that was written from end to end", b.o.size>>20))}, nil
}

// pauses applies events under load. It gives for each the longest operation that overlaps it, and
// the longest one of as many operations before each, without an event.
func pauses(ctx context.Context, s *rig.Served, count int, event, between func(context.Context, int) error) (p paused, err error) {
	r, err := load.Start(eventWrites, s.Device)
	if err != nil {
		return p, err
	}
	p.load, err = r.SampleWhile(nil, func() error {
		for i := range count {
			if err := r.More(ctx, opsPerEvent, eventLimit); err != nil {
				return err
			}
			r.Mark()
			if err := r.More(ctx, opsPerEvent, eventLimit); err != nil {
				return err
			}
			p.quiet = append(p.quiet, r.Worst())
			r.Mark()
			if err := event(ctx, i); err != nil {
				return err
			}
			if err := r.More(ctx, opsPerEvent, eventLimit); err != nil {
				return err
			}
			p.list = append(p.list, r.Worst())
			if err := between(ctx, i); err != nil {
				return err
			}
		}
		return nil
	})
	return p, errors.Join(err, r.Stop())
}

// paused is what pauses has seen: the longest operation around each event, the longest before each,
// and the load as a whole.
type paused struct {
	list, quiet []time.Duration
	load        load.Sample
}

// eventRow is the worst of some events, and beside it the longest write without one.
func eventRow(name string, p paused, note string) results.Row {
	row := results.Worst(name, "ms", results.Milliseconds(p.list...)).With(p.load)
	none := results.Worst("", "ms", results.Milliseconds(p.quiet...))
	row.Values = map[string]float64{"median_ms": results.Median(results.Milliseconds(p.list...)), "no_event_worst_ms": none.Gemel,
		"no_event_median_ms": results.Median(results.Milliseconds(p.quiet...))}
	row.Note = note + "; longest write that overlaps it, worst of all; no_event: the longest of 1,000 writes before each"
	return row
}

func nothing(context.Context, int) error { return nil }

func transferPause(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	_, l, s, err := b.eventLUN(ctx, "moved", 128<<20)
	if err != nil {
		return nil, err
	}
	seen, err := pauses(ctx, s, b.events(), func(ctx context.Context, i int) error {
		return l.Transfer(ctx, []string{"b", "a"}[i%2])
	}, nothing)
	if err != nil {
		return nil, err
	}
	return []results.Row{eventRow(c.name, seen, "ownership moves in a planned way")}, nil
}
