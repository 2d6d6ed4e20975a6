package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// arm is one side of a comparison.
type arm struct {
	served  *rig.Served
	devices []load.Device  // what is loaded; default the served device
	row     string         // the name of its row; default NAME_to_SYSTEM
	w       *load.Workload // default the comparison's
}

// comparison is a workload on several systems: the first is the case, and is measured twice in each
// round, so that the two say what the run can tell apart, or beside a system like it; the second is
// the peer in the case's own row, every other one has a row of its own.
type comparison struct {
	name   string
	w      load.Workload
	arms   []arm
	twin   *arm                        // a system like the first, in processes and on a filesystem of its own; default the first itself
	rounds int                         // default those of the run
	time   time.Duration               // of each measurement; default that of the run
	before func(context.Context) error // before each measurement
	mean   bool                        // compare the mean latency and not the rate, for loads at a fixed rate
	note   string
}

// repeats bounds how often a measurement is repeated because the pair was not in sync at its end:
// when the machine stops for longer than the lease, one node excludes the other, which is not what
// is measured.
const repeats = 3

// order is that of a round's measurements. It turns from one round to the next, so that no arm
// always meets the quieter machine, and every other round goes backwards: the case and its control
// are the same processes, and whichever comes second finds them warm.
func order(round, n int) (list []int) {
	for k := range n {
		list = append(list, (k+round/2)%n)
	}
	if round%2 == 1 {
		slices.Reverse(list)
	}
	return list
}

// compare measures in interleaved rounds.
func (b *bench) compare(ctx context.Context, c comparison) ([]results.Row, error) {
	list := append([]arm{*cmp.Or(c.twin, &c.arms[0])}, c.arms...) // the control first
	figures := make([]results.Figures, len(list))
	for i, a := range list {
		figures[i].Name, figures[i].Flags = a.served.Name, a.served.Flags
	}
	for round := range cmp.Or(c.rounds, b.o.rounds) {
		for _, i := range order(round, len(list)) {
			s, err := b.measure(ctx, c, list[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", c.name, list[i].served.Name, err)
			}
			value := c.workload(list[i]).InUnit(s.Rate)
			if c.mean {
				value = float64(s.Hist.Mean()) / float64(time.Microsecond)
			}
			figures[i].Add(value, s)
		}
	}
	unit := c.w.Unit()
	if c.mean {
		unit = "us"
	}
	gemel, control := &figures[1], &figures[0]
	main := results.Alone(c.name, unit, gemel, control)
	var rows []results.Row
	for i, a := range c.arms[1:] {
		name := a.row
		if name == "" && i > 0 {
			name = c.name + "_to_" + a.served.Name
		}
		row := results.Against(cmp.Or(name, c.name), unit, gemel, control, &figures[i+2], c.mean)
		if name == "" {
			main = row
			continue
		}
		rows = append(rows, row)
	}
	rows = append([]results.Row{main}, rows...)
	for i := range rows {
		rows[i].Note = c.note
	}
	return rows, nil
}

func (c comparison) workload(a arm) load.Workload {
	if a.w != nil {
		return *a.w
	}
	return c.w
}

// measure takes one measurement of one arm.
func (b *bench) measure(ctx context.Context, c comparison, a arm) (s load.Sample, err error) {
	devices := a.devices
	if len(devices) == 0 {
		devices = []load.Device{a.served.Device}
	}
	for range repeats {
		if c.before != nil {
			if err := c.before(ctx); err != nil {
				return s, err
			}
		}
		s, err = load.Measure(ctx, c.workload(a), cmp.Or(c.time, b.o.time), append([]load.Process{{Name: "client", PID: os.Getpid()}}, a.served.Procs...), devices...)
		if err != nil {
			return s, err
		}
		for _, d := range devices { // what it has left dirty is no cost of the next one
			if err := d.Flush(ctx); err != nil {
				return s, fmt.Errorf("flush: %w", err)
			}
		}
		if a.served.Whole == nil {
			return s, nil
		}
		if err = a.served.Whole(ctx); err == nil {
			return s, nil
		}
		fmt.Printf("%s: measured again, because the pair parted meanwhile: %v\n", c.name, err)
		if err := b.awaitWhole(ctx, a.served, wholeLimit); err != nil {
			return s, err
		}
	}
	return s, fmt.Errorf("not whole after each of %d measurements: %w", repeats, err)
}

// wholeLimit bounds a resync between measurements.
const wholeLimit = time.Minute

func (b *bench) awaitWhole(ctx context.Context, s *rig.Served, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := s.Whole(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// arms are the LUNs of systems that are measured hot; a peer that is not installed is left out, by
// name.
func (b *bench) arms(ctx context.Context, systems ...string) (list []arm, err error) {
	if b.o.against != "" {
		only := strings.Split(b.o.against, ",")
		systems = slices.DeleteFunc(slices.Clone(systems), func(s string) bool { return s != systems[0] && !slices.Contains(only, s) })
	}
	if b.o.base != "" {
		systems = append(systems, sysBase)
	}
	for i, name := range systems {
		s, err := b.system(ctx, name)
		if i > 0 && errors.Is(err, errPeer) {
			b.skip(name, err)
			continue
		} else if err != nil {
			return nil, err
		}
		list = append(list, arm{served: s})
	}
	return list, nil
}

// errPeer marks a peer that cannot be run here.
var errPeer = errors.New("the peer cannot be run")
