package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/story"
)

// killed is one kill.
type killed struct {
	Node    string  `json:"node"`
	When    string  `json:"when"`
	Owner   bool    `json:"owner"` // of the volumes, at that moment
	PauseMS float64 `json:"pause_ms"`
}

// Moments of a kill.
const (
	whenInSync = "in sync"
	whenTarget = "while it is resynced"            // the other node serves on
	whenSource = "the only one in sync, resyncing" // I/O waits for its return
)

// parseSeed reads a seed; without a seed it draws a new one.
func parseSeed(s string) (uint64, error) {
	if s == "" {
		return rand.Uint64N(1_000_000_000), nil
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("--seed: %q is not a number", s)
	}
	return n, nil
}

const killSteps = 9

func runKill(ctx context.Context, opt options, n int) error {
	return run(ctx, opt, "demo-kill", killSteps, func(ctx context.Context, r *rig) error {
		r.report.Seed = &opt.seed
		r.tell.Title(fmt.Sprintf("Gemel: %d kills at random moments; seed %d", n, opt.seed))
		for _, step := range []func(context.Context) error{r.stepBuild, r.stepPair, r.stepStorage, r.stepVolumes, r.stepLoad} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		r.tell.Step(fmt.Sprintf("Kill either node %d times", n), "At moments that follow from the seed, counted in acknowledged writes; each time the node is restarted, and the writers must not notice more than a pause.")
		k := &killer{rig: r, rng: rand.New(rand.NewPCG(opt.seed, 0x67656d656c))}
		for i := range n {
			if err := k.strike(ctx, i); err != nil {
				return fmt.Errorf("kill %d (seed %d): %w", i+1, opt.seed, err)
			}
		}
		if err := k.recover(ctx); err != nil {
			return err
		}
		for _, step := range []func(context.Context) error{r.stepReadBack, r.stepRelease, r.stepCompare} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// killer kills nodes of a rig; all that it decides follows from rng.
type killer struct {
	*rig
	rng  *rand.Rand
	busy bool // a restarted node may not be in sync yet
}

// writes lets the writers write on for a random number of writes: the moment is counted in the
// load's own time.
func (k *killer) writes(ctx context.Context, atMost int64) error {
	to := k.meter.Acked() + k.rng.Int64N(atMost)
	return k.until(ctx, func() bool { return k.meter.Acked() >= to })
}

// recover waits until the last restart has led to two nodes in sync.
func (k *killer) recover(ctx context.Context) error {
	if !k.busy {
		return nil
	}
	k.busy = false
	pause, err := k.quiet(ctx, func() error { return k.inSync(ctx) })
	longer(&k.report.ResyncMS, pause)
	return err
}

// quiet is event without output.
func (k *killer) quiet(ctx context.Context, f func() error) (time.Duration, error) {
	w := k.meter.Begin()
	if err := f(); err != nil {
		return 0, err
	}
	pause, _, err := w.End(ctx)
	return pause, err
}

// strike kills a node once.
func (k *killer) strike(ctx context.Context, i int) error {
	k.meter.Phase(fmt.Sprintf("kill %d", i+1))
	stop := k.tell.Live(k.counters)
	defer stop()
	patient, node := k.rng.IntN(2) == 0, k.rng.IntN(2)
	if patient {
		if err := k.recover(ctx); err != nil {
			return err
		}
	}
	if err := k.writes(ctx, 3000); err != nil {
		return err
	}
	when, err := k.moment(ctx, node)
	if err != nil {
		return err
	}
	owner, err := k.owns(ctx, node)
	if err != nil {
		return err
	}
	var pause time.Duration
	switch when {
	case whenInSync:
		k.busy = false
		pause, err = k.quiet(ctx, func() error { return k.kill(ctx, node) })
		longer(&k.report.FailoverMS, pause)
	case whenTarget:
		pause, err = k.quiet(ctx, func() error { return k.kill(ctx, node) })
		longer(&k.report.ResyncMS, pause)
	case whenSource:
		// Only this node has all data, so it has to come back before anything continues.
		pause, err = k.quiet(ctx, func() error {
			if err := k.pair.Kill(node); err != nil {
				return err
			}
			acked := k.meter.Acked()
			if err := k.pair.StartNode(node); err != nil {
				return err
			}
			return k.until(ctx, func() bool { return k.meter.Acked() >= acked+100 })
		})
		longer(&k.report.SoleCopyMS, pause)
	}
	if err != nil {
		return err
	}
	k.report.Kills = append(k.report.Kills, killed{Node: harness.Names[node], When: when, Owner: owner, PauseMS: *ms(pause)})
	whose := "the other node owned the volumes"
	if owner {
		whose = "it owned the volumes"
	}
	k.tell.Fact("kill %2d: node %s, %s, %s: longest write %s", i+1, harness.Names[node], when, whose, story.MS(pause))
	if when != whenSource {
		if err := k.writes(ctx, 1000); err != nil {
			return err
		}
		if err := k.pair.StartNode(node); err != nil {
			return err
		}
	}
	k.busy = true
	return k.until(ctx, func() bool { return k.meter.InPhase() >= minPhase })
}

// moment says what killing a node would mean now.
func (k *killer) moment(ctx context.Context, node int) (when string, err error) {
	err = k.wait(ctx, "it is known which nodes hold all data", func() (bool, string) {
		var phase [2]targetv1.Phase
		for i := range phase {
			if s, err := k.pair.Status(ctx, i); err == nil {
				phase[i] = s.Phase
			}
		}
		alone := func(i int) bool {
			return phase[i] == targetv1.Phase_PHASE_ALONE || phase[i] == targetv1.Phase_PHASE_RESYNCING
		}
		switch {
		case phase[0] == targetv1.Phase_PHASE_IN_SYNC && phase[1] == targetv1.Phase_PHASE_IN_SYNC:
			when = whenInSync
		case alone(node):
			when = whenSource
		case alone(1 - node):
			when = whenTarget
		}
		return when != "", fmt.Sprint(phase)
	})
	return when, err
}

// owns says whether a node owns the first volume.
func (k *killer) owns(ctx context.Context, node int) (bool, error) {
	l, err := call(ctx, k.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.LUN, error) {
		return c.GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: k.vols[0].lun})
	})
	if err != nil {
		return false, err
	}
	return l.Owner == harness.Names[node], nil
}
