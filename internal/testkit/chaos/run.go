// Package chaos runs a pair of real target processes in network namespaces, lets clients on both
// paths write and read while faults that follow from a seed happen to processes, network, disks and
// arbiter, and judges what the clients saw: each block must behave as one register (checked with
// porcupine), and in the end both copies must be the same, byte by byte.
//
// The program must run isolated (see netns.Isolate): everything it makes in the kernel goes away
// with it.
package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lag"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// starved is a delay of the machine's own after which a pause says nothing about the targets.
const starved = 100 * time.Millisecond

// Config of a run.
type Config struct {
	Seed     uint64
	Duration time.Duration // of the faults; setting up and comparing come on top
	Episodes int           // that many, however long they take, and not Duration; 0: by Duration
	Kinds    []Kind        // default: all
	Soak     bool          // phases that leave the processes alive in between, and a look at what these use (soak.go)
	Binary   string        // gemel-target
	Logs     string        // folder for the nodes' logs of a run that failed; empty: nowhere
	Out      io.Writer     // progress
	Verbose  bool          // every episode is printed
	// Members gives the volume of each node two members, between which extents move all the time.
	// Kinds that reach behind the nodes' backs for the files of LUNs are left out.
	Members bool
	// NoChecksums has the nodes keep none: a proof that damage is noticed by who judges.
	NoChecksums bool
	// Tamper, if set, is called with the state folders when both nodes have ended, before the
	// copies are compared: a proof that the comparison bites.
	Tamper func(state [2]string) error
}

// Bounds.
const (
	windowLength = 12 * time.Second // between two cuts, at least
	serviceBound = 60 * time.Second // for every host to be served again after an episode
	syncBound    = 60 * time.Second // for the pair to be in sync again after an episode
)

// runner is one run.
type runner struct {
	cfg    Config
	rig    *rig
	lag    *lag.Probe
	report *Report
}

// Run makes a pair, makes it suffer and judges it. The report is there even with an error, unless
// setting up failed. When ctx ends before that, faults end, what was recorded until then is judged,
// and the error is ErrInterrupted, with what else is wrong.
func Run(ctx context.Context, cfg Config) (rep *Report, err error) {
	if !netns.Isolated() {
		return nil, errors.New("chaos must run in namespaces of its own")
	}
	if cfg.Kinds == nil {
		cfg.Kinds = Kinds
	}
	if cfg.Members {
		cfg.Kinds = memberKinds(cfg.Kinds)
	}
	cfg.Out = &lines{w: cfg.Out}
	fmt.Fprintf(cfg.Out, "chaos: seed %d\n", cfg.Seed)
	r, err := build(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	x := &runner{cfg: cfg, rig: r, lag: lag.New(r.rec.begun, starved),
		report: &Report{Seed: cfg.Seed, Faults: map[Kind]int{}, PauseByEpisode: map[string]float64{}}}
	defer func() { err = errors.Join(err, r.close()) }()
	err = x.run(ctx)
	x.summarize()
	err = errors.Join(err, x.report.verdict())
	if cfg.Soak && (x.report.Interrupted == "" || len(x.report.Samples) >= minSamples) {
		if grows := flat(x.report.Samples); grows != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errVerdict, grows))
		}
	}
	if err != nil {
		x.report.Error = err.Error()
		x.keepLogs()
	}
	x.report.Passed = err == nil
	return x.report, err
}

// lines is a writer that several goroutines write whole lines to.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (x *runner) run(ctx context.Context) error {
	load, stop := context.WithCancel(context.WithoutCancel(ctx))
	watch, unwatch := context.WithCancel(load)
	var workers, watchers sync.WaitGroup
	x.rig.run(load, x.cfg.Seed, &workers)
	watchers.Go(func() { x.lag.Run(watch) })
	watchers.Go(func() {
		if err := x.lag.Sync(watch, x.rig.lab.Dir); err != nil {
			x.rig.rec.failed("probe of the disk: %w", err)
		}
	})
	watchers.Go(func() { x.progress(watch) })
	if x.cfg.Members {
		watchers.Go(func() { x.rig.moveMembers(watch, x.cfg.Seed) })
	}
	err := x.suffer(ctx)
	if err == nil {
		err = x.settle(ctx)
	}
	var cut error // the run was interrupted
	if ctx.Err() != nil {
		cut, err = x.interrupt(ctx, err)
	}
	stop()
	if errors.Is(err, context.DeadlineExceeded) {
		x.stacks()
	}
	if err != nil { // workers may wait for an answer that does not come
		x.rig.rec.abandoned.Store(true)
		err = errors.Join(err, x.rig.heal())
		_ = x.rig.disconnect()
	}
	workers.Wait()
	unwatch()
	watchers.Wait()
	if err == nil {
		err = x.judge()
	}
	if err != nil || cut != nil {
		return errors.Join(cut, err)
	}
	if err = x.home(ctx); err == nil {
		err = x.rig.allHealed(ctx)
	}
	if err == nil {
		err = x.compare(ctx)
	}
	if ctx.Err() != nil {
		cut, err = x.interrupted(ctx, err)
	}
	return errors.Join(cut, err)
}

// suffer plays episodes until the time is over.
func (x *runner) suffer(ctx context.Context) error {
	p, calm := newPlan(x.cfg.Seed, x.cfg.Kinds), newPlan(x.cfg.Seed, calmKinds(x.cfg.Kinds))
	begun, cut := time.Now(), time.Now()
	settled := true
	more := func(n int) bool {
		if x.cfg.Episodes > 0 {
			return n <= x.cfg.Episodes
		}
		return time.Since(begun) < x.cfg.Duration
	}
	for n := 1; more(n); n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		quiet := x.cfg.Soak && time.Since(begun)/calmPhase%2 == 1
		e := p.next()
		if quiet {
			e = calm.next()
		}
		if e.Whole && !settled {
			if err := x.settle(ctx); err != nil {
				return fmt.Errorf("before episode %d (%v): %w", n, e, err)
			}
			settled = true
		}
		if _, ok := e.damages(); ok {
			if err := x.rig.believed(ctx); err != nil {
				return fmt.Errorf("before episode %d (%v): %w", n, e, err)
			}
		}
		if x.cfg.Verbose {
			fmt.Fprintf(x.cfg.Out, "%8.3f s episode %d: %v\n", time.Since(x.rig.rec.begun).Seconds(), n, e)
		}
		if err := x.episode(ctx, e, settled); err != nil {
			return fmt.Errorf("episode %d (%v): %w", n, e, err)
		}
		x.report.Episodes++
		if settled = e.Patient; settled {
			if err := x.settle(ctx); err != nil {
				return fmt.Errorf("after episode %d (%v): %w", n, e, err)
			}
			x.rig.readCopy(ctx, e)
			if _, ok := e.damages(); ok {
				if err := x.rig.afterDamage(ctx); err != nil {
					return fmt.Errorf("after episode %d (%v): %w", n, e, err)
				}
			}
			if quiet {
				if err := x.sample(ctx); err != nil {
					return err
				}
			}
		} else if err := wait(ctx, e.Rest); err != nil {
			return err
		}
		if time.Since(cut) >= windowLength {
			if err := x.judge(); err != nil {
				return err
			}
			cut = time.Now()
		}
	}
	return nil
}

// wait lets time pass: the length of a fault.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// episode plays one: each fault begins and ends at its time, then all is healed, then every host
// must be served again.
func (x *runner) episode(ctx context.Context, e Episode, settled bool) error {
	type event struct {
		at    time.Duration
		fault Fault
		end   bool
	}
	var events []event
	for _, f := range e.Faults {
		events = append(events, event{f.At, f, false}, event{f.At + f.For, f, true})
		x.count(f)
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	var wg sync.WaitGroup
	var before uint64
	busy := settled && e.still()
	if busy {
		var err error
		if before, err = x.rig.epoch(ctx); err != nil {
			return err
		}
	}
	from := x.rig.rec.now()
	begun := time.Now()
	var err error
	for _, ev := range events {
		if err = wait(ctx, ev.at-time.Since(begun)); err != nil {
			break
		}
		if err == nil && ev.end {
			err = x.rig.end(ev.fault)
		} else if err == nil {
			// Not ended by an interruption: calls that it cut off would be errors that hosts have
			// seen.
			err = x.rig.begin(context.WithoutCancel(ctx), ev.fault, busy, &wg)
		}
		if err != nil {
			break
		}
	}
	wg.Wait()
	err = errors.Join(err, x.rig.heal())
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, serviceBound, fmt.Errorf("service is not back after %v", serviceBound))
	defer cancel()
	if err := x.rig.rec.all(limited); err != nil {
		return err
	}
	x.rig.rec.noSpace.Store(false)
	if busy {
		after, err := x.rig.epoch(ctx)
		if err != nil {
			return err
		}
		if after != before && !x.lag.In(time.Duration(from), time.Duration(x.rig.rec.now())) { // a node that does not get to run is silent
			x.report.StepDowns++
			fmt.Fprintf(x.cfg.Out, "  the record went from epoch %d to %d during: %v\n", before, after, e)
		}
	}
	x.pauses(e, from, x.rig.rec.now(), settled)
	for i, n := range harness.Names {
		if ended, err := x.rig.pair.Ended(i); ended {
			return fmt.Errorf("the process of node %s has ended: %w", n, err)
		}
	}
	return nil
}

func (x *runner) count(f Fault) {
	x.report.Faults[f.Kind]++
	switch f.Kind {
	case Kill:
		x.report.Kills++
	case Crash:
		x.report.Kills++
	case KillBoth:
		x.report.Kills += 2
	case PartitionLink, PartitionOneWay, PartitionClients, PartitionNode:
		x.report.Partitions++
	}
}

// pauses takes the longest operation of an episode.
func (x *runner) pauses(e Episode, from, to int64, settled bool) {
	in, out := x.rig.rec.overlapping(from, to)
	r := x.report
	for _, p := range out {
		if r.PauseMax = max(r.PauseMax, ms(p.length())); !x.starvedIn(p) {
			r.PauseQuiet = max(r.PauseQuiet, ms(p.length()))
		}
	}
	worst, hungry := time.Duration(0), time.Duration(0)
	for _, p := range in {
		if x.starvedIn(p) {
			hungry = max(hungry, p.length())
		} else {
			worst = max(worst, p.length())
		}
	}
	if x.cfg.Verbose {
		for _, p := range in {
			if p.length() > 600*time.Millisecond {
				fmt.Fprintf(x.cfg.Out, "    %s took %.0f ms from %.3f s\n", p.what, ms(p.length()), time.Duration(p.start).Seconds())
			}
		}
	}
	longest := ms(worst)
	if hungry > worst {
		r.Starved = append(r.Starved, StarvedPause{e.label(), ms(hungry)})
	}
	r.PauseMax, r.PauseFed = max(r.PauseMax, longest, ms(hungry)), max(r.PauseFed, longest)
	r.PauseByEpisode[e.label()] = max(r.PauseByEpisode[e.label()], longest)
	if len(e.Faults) == 1 && e.Faults[0].Kind == Kill && settled && hungry <= worst {
		r.PausesOfKills = append(r.PausesOfKills, longest)
		r.PauseAfterKill = max(r.PauseAfterKill, longest)
	}
}

// settle waits until the pair is in sync.
func (x *runner) settle(ctx context.Context) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, syncBound)
	defer cancel()
	if err := x.rig.pair.WaitInSync(ctx); err != nil {
		return err
	}
	x.report.ResyncSecondsMax = max(x.report.ResyncSecondsMax, time.Since(begun).Seconds())
	return nil
}

// judge ends a window.
func (x *runner) judge() error {
	n, err := x.rig.cut()
	x.report.Judged += n
	x.report.Windows++
	return err
}

// progress says every few seconds how it goes.
func (x *runner) progress(ctx context.Context) {
	t := time.NewTicker(5 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		a, wrong, errs := x.rig.rec.found()
		late, disk := x.lag.Worst()
		fmt.Fprintf(x.cfg.Out, "%6.0f s: %d operations, anomalies %d, wrong reads %d, errors %d, the machine's lag up to %.0f ms, its disk's %.0f ms\n",
			time.Since(x.rig.rec.begun).Seconds(), x.rig.rec.done.Load(), len(a), wrong, len(errs), ms(late), ms(disk))
	}
}

// summarize fills in what the recorder has found.
func (x *runner) summarize() {
	rec, r := x.rig.rec, x.report
	anomalies, wrong, errs := rec.found()
	r.Flood, r.Fenced, r.Recreated = rec.flood.Load(), rec.fences.Load(), rec.recreated.Load()
	r.Crowd, r.CrowdCommands, r.Replaced, r.Damaged, r.ShutDowns = rec.guests.Load(), rec.crowded.Load(), rec.replaced.Load(), rec.damaged.Load(), rec.shutDowns.Load()
	r.Confined, r.MemoryLimit, r.Resident, r.CommandMemory = x.rig.memory.String(), memoryLimit, rec.resident.Load(), rec.commandMemory.Load()
	r.Seconds, r.Operations, r.NoSpace = time.Since(rec.begun).Seconds(), rec.done.Load(), rec.refused.Load()
	for i := range harness.Names {
		r.Left += len(x.rig.pair.Exits(i))
		r.LimitMet[i] = x.rig.memory.met(i)
	}
	late, disk := x.lag.Worst()
	r.Anomalies, r.AppErrors, r.SchedulingLag, r.DiskLag = len(anomalies), len(errs), ms(late), ms(disk)
	r.WrongBytes, r.DamagedBlocks, r.HealedBlocks, r.RepairedRanges, r.ReadErrors, r.Restored, r.DamageWays, r.Unchecked = wrong, x.rig.rot.blocks, x.rig.rot.healed+x.rig.rot.repaired,
		x.rig.rot.repaired, rec.wounds.judged.Load(), x.rig.rot.restored, x.rig.rot.ways, x.cfg.NoChecksums
	for _, w := range rec.wrong {
		r.Details = append(r.Details, "wrong: "+w)
	}
	for _, a := range anomalies {
		if a.lost {
			r.LostWrites++
		}
		r.Details = append(r.Details, a.String())
	}
	for _, e := range errs {
		r.Details = append(r.Details, "error: "+e.Error())
	}
}

// starvedIn tells whether the machine starved during a pause.
func (x *runner) starvedIn(p pause) bool {
	return x.lag.In(time.Duration(p.start), time.Duration(p.end))
}
