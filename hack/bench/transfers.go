package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
)

// steadyTime is for how long the load is looked at without a transfer.
const steadyTime = 20 * time.Second

// hundredTransfers moves ownership a hundred times under load, and compares the longest pause with
// the same load when nothing happens; and does so with the commit that is compared with.
func hundredTransfers(ctx context.Context, b *bench, c testCase) (rows []results.Row, err error) {
	systems := []string{sysEvents}
	if b.o.base != "" {
		systems = append(systems, sysBase)
	}
	for _, system := range systems {
		_, l, s, err := b.eventLUNOf(ctx, system, "moved-often", 128<<20)
		if err != nil {
			return rows, err
		}
		r, err := load.Start(eventWrites, s.Device)
		if err != nil {
			return rows, err
		}
		steady, err := r.Sample(ctx, steadyTime, nil)
		if err = errors.Join(err, r.Stop()); err != nil {
			return rows, err
		}
		seen, err := pauses(ctx, s, 100, func(ctx context.Context, i int) error {
			return l.Transfer(ctx, []string{"b", "a"}[i%2])
		}, nothing)
		if err != nil {
			return rows, err
		}
		row := eventRow(c.name, seen, "ownership moves in a planned way, 100 times")
		if system == sysBase {
			row.Name += "_base"
		}
		usual := float64(steady.Hist.Quantile(0.999)) / float64(time.Millisecond)
		row.Values["steady_p999_ms"], row.Values["beyond_ms"] = usual, row.Gemel-usual
		row.Note += fmt.Sprintf("; steady: %v without a move, beyond: what the worst took more than p99.9 of that", steadyTime)
		rows = append(rows, row)
	}
	return rows, nil
}
