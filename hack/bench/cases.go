package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
)

// testCase measures one or more rows.
type testCase struct {
	name  string
	rows  string // the names of its rows that do not begin with its own, for -only
	quick bool   // part of -quick
	asked bool   // only when -only names it
	uses  []string
	run   func(ctx context.Context, b *bench, c testCase) ([]results.Row, error)
}

// cases in the order in which they are run: those that share systems follow each other.
func cases() []testCase {
	return slices.Concat(hotCases(), checksumCases(), shapeCases(), closeCases(), eventCases(), aluaCases(), snapshotCases(), coldCases(), opinionCases(), slowCases(), scaleCases(), sessionCases(), groupCases(), rotationCases(), longCases())
}

// selected are those that the options ask for.
func (o options) selected() (list []testCase) {
	for _, c := range cases() {
		if o.names(c) || o.only == "" && !c.asked && (c.quick || !o.quick) {
			list = append(list, c)
		}
	}
	return list
}

// names says whether -only means a case: by its whole name or that of a row, else by a part of
// either.
func (o options) names(c testCase) bool {
	return slices.ContainsFunc(strings.FieldsFunc(o.only, func(r rune) bool { return r == ',' }), func(name string) bool {
		whole := slices.ContainsFunc(cases(), func(x testCase) bool { return x.makes(name) })
		return c.makes(name) || !whole && (strings.Contains(c.name, name) || strings.Contains(c.rows, name))
	})
}

func (c testCase) makes(row string) bool {
	return c.name == row || slices.Contains(strings.Fields(c.rows), row)
}

func listCases(w io.Writer) {
	for _, c := range cases() {
		when := "full"
		if c.quick {
			when = "full, quick"
		}
		if c.asked {
			when = "asked for by -only"
		}
		fmt.Fprintf(w, "%-36s %-20s %s\n", c.name, when, c.rows)
	}
}

// runCases runs them; one that fails does not keep the others from being run, and its error is in
// the result.
func (b *bench) runCases(ctx context.Context) (results.Report, error) {
	report := b.identify(ctx)
	list := b.o.selected()
	var failures error
	for i, c := range list {
		begun := time.Now()
		rows, err := c.run(ctx, b, c)
		for _, r := range rows {
			r.Command = "make bench ONLY=" + c.name
			report.Rows = append(report.Rows, r)
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errPeer) {
			b.skip(c.name, err)
		} else if err != nil {
			fmt.Printf("%s: failed: %v\n", c.name, err)
			failures = errors.Join(failures, fmt.Errorf("%s: %w", c.name, err))
		}
		fmt.Printf("[%d/%d] %s: %.1f s\n", i+1, len(list), c.name, time.Since(begun).Seconds())
		results.PrintRows(rows)
		if err := b.endUnused(list[i+1:]); err != nil {
			failures = errors.Join(failures, err)
		}
	}
	report.Skipped = b.skipped
	return report, failures
}

// endUnused ends the systems that no case uses any more: each of them costs heartbeats and memory.
func (b *bench) endUnused(rest []testCase) error {
	var errs []error
	for name := range b.closers {
		used := slices.ContainsFunc(rest, func(c testCase) bool {
			return slices.Contains(c.uses, name) || name == sysDefault && slices.Contains(c.uses, sysUnmirrored)
		})
		if !used && (name != sysBase || !slices.ContainsFunc(rest, func(c testCase) bool {
			return slices.Contains(c.uses, sysDefault) || slices.Contains(c.uses, sysEvents)
		})) {
			errs = append(errs, b.end(name))
		}
	}
	return errors.Join(errs...)
}
