package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// opinionCases ask the same with a client that others wrote: libiscsi's iscsi-perf.
func opinionCases() []testCase {
	return []testCase{
		{name: "iscsi_perf_randread_4k_qd32", uses: []string{sysDefault, sysTgt}, run: secondOpinion(false)},
		{name: "iscsi_perf_randread_4k_qd32_cold", uses: []string{sysDefault, sysTgt}, run: secondOpinion(true)},
	}
}

var perfIOPS = regexp.MustCompile(`iops average (\d+)`)

// secondOpinion has iscsi-perf read both targets for two seconds at a time: it takes no less.
func secondOpinion(cold bool) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		if _, err := exec.LookPath("iscsi-perf"); err != nil {
			return nil, fmt.Errorf("%w: iscsi-perf is not installed (Debian package libiscsi-bin)", errPeer)
		}
		open := func() ([]arm, error) { return b.arms(ctx, sysDefault, sysTgt) }
		if cold {
			open = func() ([]arm, error) { return b.coldArms(ctx, false) }
		}
		arms, err := open()
		if err != nil {
			return nil, err
		}
		if len(arms) < 2 {
			return nil, fmt.Errorf("%w: tgt", errPeer)
		}
		var figures [3]results.Figures // the control first
		for range min(b.o.rounds, 3) {
			for i, s := range []*rig.Served{arms[0].served, arms[0].served, arms[1].served} {
				if cold {
					if err := rig.DropCaches(); err != nil {
						return nil, err
					}
				}
				rate, err := iscsiPerf(ctx, s)
				if err != nil {
					return nil, err
				}
				figures[i].Name, figures[i].Flags = s.Name, s.Flags
				figures[i].Add(rate, load.Sample{Hist: new(load.Histogram)})
			}
		}
		row := results.Against(c.name, "IOPS", &figures[1], &figures[0], &figures[2], false)
		row.Note = "libiscsi's iscsi-perf reads, 4 KiB at random, 32 in flight, one session to the owner"
		return []results.Row{row}, nil
	}
}

func iscsiPerf(ctx context.Context, s *rig.Served) (float64, error) {
	url, err := s.URL(ctx, "iscsi-perf")
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, "iscsi-perf", "-i", rig.HostIQN+"iscsi-perf", "-m", "32", "-b", "8", "-t", "2", "-r", url).CombinedOutput()
	all := perfIOPS.FindAllSubmatch(out, -1)
	if len(all) == 0 {
		return 0, fmt.Errorf("iscsi-perf on %s: %w: %.300s", s.Name, errors.Join(err, errors.New("it printed no rate")), out)
	}
	return strconv.ParseFloat(string(all[len(all)-1][1]), 64)
}
