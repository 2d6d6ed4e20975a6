package main

import (
	"context"
	"fmt"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/story"
)

const demoSteps = 15

func runDemo(ctx context.Context, opt options) error {
	return run(ctx, opt, "demo", demoSteps, func(ctx context.Context, r *rig) error {
		r.tell.Title("Gemel: every LUN on two nodes, one owns it, hosts learn the good path")
		for _, step := range []func(context.Context) error{r.stepBuild, r.stepPair, r.stepStorage, r.stepVolumes, r.stepLoad,
			r.stepTransfer, r.stepKill, r.stepResync, r.stepFailBack, r.stepExpand, r.stepSnapshot,
			r.stepReadBack, r.stepRelease, r.stepCompare, r.stepDelete} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// The node that the story is about, and the other.
const (
	first  = 0 // owns the volumes at first
	second = 1 // gets them by a planned transfer, is killed, and gets them back
)

func (r *rig) stepBuild(ctx context.Context) error {
	r.tell.Step("Build", "One binary for each target node, one for the CSI plugin.")
	return r.build(ctx)
}

func (r *rig) stepPair(ctx context.Context) error {
	r.tell.Step("Start the pair", "Two processes, as on two machines; a file replaces the arbiter that decides which nodes are members.")
	return r.startPair(ctx)
}

func (r *rig) stepStorage(ctx context.Context) error {
	if r.why != nil {
		r.tell.Step("No CSI plugin", "This run does the same on raw I/O: it asks the pair itself for LUNs and uses the initiator library in this process.")
		return r.startStorage(ctx)
	}
	r.tell.Step("Start the CSI plugin", "The calls of the kubelet and the sidecars are made by this program.")
	return r.startStorage(ctx)
}

func (r *rig) stepVolumes(ctx context.Context) error {
	what := "Create, publish, stage and mount two volumes"
	if r.why != nil {
		what = "Create, map and log in to two volumes"
	}
	r.tell.Step(what, fmt.Sprintf("Each has %s, thin; each write will be on both nodes before it is acknowledged.", story.Bytes(volumeSize)))
	if err := r.createVolumes(ctx); err != nil {
		return err
	}
	return r.moveAll(ctx, first)
}

func (r *rig) stepLoad(ctx context.Context) error {
	r.tell.Step("Start the writers", fmt.Sprintf("Direct I/O, %d writes in flight on each volume; every block of 4 KiB carries its sequence number and a checksum, and every acknowledgement is recorded.", r.opt.depth))
	if err := r.startLoad(ctx); err != nil {
		return err
	}
	w := r.meter.Begin()
	if err := r.phase(ctx, "steady", func() error { return nil }); err != nil {
		return err
	}
	pause, ops, err := w.End(ctx)
	r.report.SteadyMS = ms(pause)
	r.tell.Fact("without any event the longest of %d writes took %s", ops, story.MS(pause))
	return err
}

func (r *rig) stepTransfer(ctx context.Context) error {
	r.tell.Step("Move both volumes to node "+harness.Names[second]+", planned, under load", "As an upgrade or rebalancing does: new commands are held, those under way end, the other node takes over; it has every byte already.")
	return r.phase(ctx, "transfer", func() error {
		pause, err := r.event(ctx, "transfer", func() error { return r.moveAll(ctx, second) })
		r.report.TransferMS = ms(pause)
		return err
	})
}

func (r *rig) stepKill(ctx context.Context) error {
	r.tell.Step("kill -9 node "+harness.Names[second]+", the owner of exactly these volumes, under load", "The other node must be sure that it is dead: it waits for the lease to run out, takes its place in the record, and serves.")
	if err := r.ownedBy(ctx, second); err != nil {
		return err
	}
	return r.phase(ctx, "failover", func() error {
		pause, err := r.event(ctx, "fail-over", func() error { return r.kill(ctx, second) })
		r.report.FailoverMS = ms(pause)
		return err
	})
}

func (r *rig) stepResync(ctx context.Context) error {
	r.tell.Step("Restart it, and resync", "It is no member any more: what it missed is copied to it while writes go on, then it is admitted again.")
	return r.phase(ctx, "resync", func() error {
		pause, err := r.event(ctx, "resync", func() error { return r.restart(ctx, second) })
		r.report.ResyncMS = ms(pause)
		return err
	})
}

func (r *rig) stepFailBack(ctx context.Context) error {
	r.tell.Step("Fail back", "Node "+harness.Names[second]+" takes its volumes again, in the planned way.")
	return r.phase(ctx, "failback", func() error {
		pause, err := r.event(ctx, "fail-back", func() error { return r.moveAll(ctx, second) })
		r.report.FailbackMS = ms(pause)
		return err
	})
}

func (r *rig) stepExpand(ctx context.Context) error {
	r.tell.Step("Expand both volumes to "+story.Bytes(grownSize)+", online", "The pair grows the LUN on both nodes and notifies its hosts; nothing is interrupted.")
	return r.phase(ctx, "expand", func() error {
		pause, err := r.event(ctx, "expansion", func() error { return r.expandAll(ctx) })
		r.report.ExpandMS = ms(pause)
		if err != nil {
			return err
		}
		return r.growLoad(ctx)
	})
}

func (r *rig) stepSnapshot(ctx context.Context) error {
	v := r.vols[0]
	r.tell.Step("Snapshot of "+v.name+", and a clone of it beside the original", "One instant of both nodes, while writes go on; the clone is checked against what had been acknowledged at that instant.")
	return r.phase(ctx, "snapshot", func() error {
		s := r.streams[0]
		if err := s.Target.Sync(); err != nil { // what maps the file's blocks is durable before the moment that counts
			return err
		}
		var id string
		s.Ledger.Begin()
		pause, err := r.event(ctx, "snapshot", func() (err error) {
			before := s.Ledger.Acked()
			if err := r.until(ctx, func() bool { return s.Ledger.Acked() > before+50 }); err != nil {
				return err
			}
			if id, err = r.store.snapshot(ctx, v, "demo-snapshot"); err != nil {
				return err
			}
			before = s.Ledger.Acked()
			return r.until(ctx, func() bool { return s.Ledger.Acked() > before+50 })
		})
		moment := s.Ledger.End()
		r.report.SnapshotMS = ms(pause)
		if err != nil {
			return err
		}
		r.snapshots = append(r.snapshots, id)
		return r.checkClone(ctx, v, s, id, moment)
	})
}

func (r *rig) stepReadBack(ctx context.Context) error {
	r.tell.Step("Stop the writers and read everything back, as the application sees it", "Each block must hold its last acknowledged write, or a later one that was under way.")
	return r.readBackApplication(ctx)
}

func (r *rig) stepRelease(ctx context.Context) error {
	r.tell.Step("Unpublish, then read everything back through each node alone", "Fresh sessions to one portal at a time: the owner answers itself, the other node forwards.")
	for len(r.used) > 0 {
		v := r.used[len(r.used)-1]
		if err := r.store.release(ctx, v); err != nil {
			return err
		}
		r.used = r.used[:len(r.used)-1]
	}
	return r.readBackNodes(ctx)
}

func (r *rig) stepCompare(ctx context.Context) error {
	r.tell.Step("Stop both nodes and compare their stores", "Byte by byte, every LUN and snapshot; a hole equals zeroes.")
	return r.compareStores(ctx)
}

func (r *rig) stepDelete(ctx context.Context) error {
	r.tell.Step("Start the pair again and delete everything", "A deleted volume leaves nothing on either node.")
	return r.deleteAll(ctx)
}
