package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
)

// closeCases compare what is expected to be equal, or better by little, where the question is
// whether a few in a hundred are lost: several LUNs beside one LUN at the same depth over all, and
// reads from memory beside those of an earlier commit.
func closeCases() []testCase {
	list := []testCase{{name: "luns4_qd8_to_lun1_qd32", uses: []string{sysDefault}, run: severalLUNs(4, (*bench).often)}}
	for _, depth := range []int{1, 32} {
		list = append(list, testCase{name: fmt.Sprintf("cached_read_4k_qd%d_to_base", depth), asked: true, uses: []string{sysDefault, sysBase, sysEvents},
			run: cachedReads(load.Workload{Reads: 100, Block: 4096, Depth: depth})})
	}
	return append(list, testCase{name: "mirrored_write_4k_qd32_tmpfs_to_base", asked: true, uses: []string{sysTmpFS, sysBaseTmpFS}, run: withoutDisk})
}

// withoutDisk compares mirrored writes with those of an earlier commit where no disk takes part in
// the comparison: both nodes' disks are one here, and set the rate.
func withoutDisk(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
	arms, err := b.withBase(ctx, c)
	if err != nil {
		return nil, err
	}
	return b.compare(ctx, comparison{name: c.name, w: load.Workload{Block: 4096, Depth: 32}, arms: arms, note: "both nodes of both pairs have memory in place of XFS"})
}

// withBase opens the LUNs of a case that needs the commit that is compared with.
func (b *bench) withBase(ctx context.Context, c testCase) (arms []arm, err error) {
	if b.o.base == "" {
		return nil, fmt.Errorf("%w: -base names the commit that is compared with", errPeer)
	}
	for _, system := range c.uses {
		s, err := b.system(ctx, system)
		if err != nil {
			return nil, err
		}
		arms = append(arms, arm{served: s})
	}
	return arms, nil
}

// A few in a hundred is less than what two measurements of one pair differ by: it takes many short
// ones to see it.
const (
	oftenRounds = 41
	oftenTime   = 200 * time.Millisecond
)

// often has a comparison take that many.
func (b *bench) often(c comparison) comparison {
	if !b.o.quick {
		c.rounds, c.time = max(oftenRounds, b.o.rounds), oftenTime
	}
	return c
}

// cachedReads compares reads through the owner with those of the commit that is compared with. The
// control is another pair of this commit: two pairs differ by where their memory and files lie, and
// so does the pair of the other commit.
func cachedReads(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		arms, err := b.withBase(ctx, c)
		if err != nil {
			return nil, err
		}
		return b.compare(ctx, b.often(comparison{name: c.name, w: w, arms: arms[:2], twin: &arms[2],
			note: "reads that the page cache answers, through the owner; the control is between two pairs of this commit"}))
	}
}
