package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/ledger"
	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/story"
)

// settle bounds how long the demo waits for any state.
const settle = 60 * time.Second

// wait polls the pair; it ends early when a writer does, but not on an error of its own reading of
// the state.
func (r *rig) wait(ctx context.Context, what string, ok func() (bool, string)) error {
	return within(ctx, settle, func(ctx context.Context) error {
		var dead error
		err := harness.Wait(ctx, what, func() (bool, string) {
			for _, s := range r.streams {
				if dead = s.Alive(); dead != nil {
					return true, ""
				}
			}
			return ok()
		})
		return errors.Join(err, dead)
	})
}

// until waits for something that the writers bring about.
func (r *rig) until(ctx context.Context, ok func() bool) error {
	return within(ctx, settle, func(ctx context.Context) error { return load.Until(ctx, r.streams, ok) })
}

// createVolumes makes one mounted and one raw volume.
func (r *rig) createVolumes(ctx context.Context) error {
	kinds := []kind{mounted, block}
	if r.why != nil {
		kinds = []kind{device, device}
	}
	for i, name := range []string{"pvc-files", "pvc-block"} {
		begun := time.Now()
		v, err := r.store.create(ctx, name, kinds[i], volumeSize, "")
		if v != nil {
			r.vols, r.used = append(r.vols, v), append(r.used, v)
		}
		if err != nil {
			return err
		}
		where := ""
		if v.csi != nil {
			where = " at " + strings.TrimPrefix(v.csi.Target, r.lab.Dir+"/")
		}
		r.tell.Fact("%s: %s, %s%s, in %.1f s", name, story.Bytes(v.size), v.kind, where, time.Since(begun).Seconds())
	}
	return nil
}

// startLoad opens the volumes, starts the writers and waits until every block is written once.
func (r *rig) startLoad(ctx context.Context) error {
	for i, v := range r.vols {
		t, err := r.store.open(v)
		if err != nil {
			return err
		}
		reg := load.Region{Off: 64 << 20, Blocks: r.opt.blocks}
		if f, ok := t.(*load.File); ok && v.kind == mounted {
			reg.Off = 0
			if err := f.Reserve(reg); err != nil {
				return errors.Join(err, t.Close())
			}
		}
		r.streams = append(r.streams, load.NewStream(v.name, t, r.meter, uint64(i)+1, r.opt.depth, r.opt.seed, reg))
	}
	for _, s := range r.streams {
		s.Start()
	}
	return r.filled(ctx)
}

// filled waits until every block is written, and makes that durable.
func (r *rig) filled(ctx context.Context) error {
	stop := r.tell.Live(func() string {
		var done, all int64
		for _, s := range r.streams {
			done, all = done+int64(s.Ledger.Written()), all+int64(s.Ledger.Len())
		}
		return "every block once " + story.Bar(done, all) + "   " + r.counters()
	})
	defer stop()
	err := r.until(ctx, func() bool {
		for _, s := range r.streams {
			if s.Ledger.Written() < s.Ledger.Len() {
				return false
			}
		}
		return true
	})
	for _, s := range r.streams {
		if err == nil {
			err = s.Target.Sync()
		}
	}
	if err != nil {
		return err
	}
	acked := r.meter.Acked() // what the flush has held up is over before anything is measured
	return r.until(ctx, func() bool { return r.meter.Acked() >= acked+500 })
}

// counters is what the writers do right now.
func (r *rig) counters() string {
	s := fmt.Sprintf("%d writes acknowledged, %d errors, longest just now %s", r.meter.Acked(), len(r.meter.Errors()), story.MS(r.meter.Recent()))
	if note := r.note.Load(); note != nil {
		s += "   " + *note
	}
	return s
}

// phase runs part of the story under its name and has the writers write on for phaseWrites.
func (r *rig) phase(ctx context.Context, name string, f func() error) error {
	r.meter.Phase(name)
	stop := r.tell.Live(r.counters)
	defer stop()
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return r.until(ctx, func() bool { return r.meter.InPhase() >= phaseWrites })
}

// event measures the pause that f causes for the writers; f returns when the state has settled.
func (r *rig) event(ctx context.Context, name string, f func() error) (time.Duration, error) {
	w := r.meter.Begin()
	begun := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	pause, ops, err := w.End(ctx)
	if err == nil {
		r.tell.Fact("%s: settled after %s; the longest of %d writes that overlap it took %s", name, story.MS(took), ops, story.MS(pause))
	}
	return pause, err
}

// moveAll moves all volumes to a node and waits until both nodes say so.
func (r *rig) moveAll(ctx context.Context, to int) error {
	req := &targetv1.TransferOwnershipRequest{ToNode: harness.Names[to]}
	for _, v := range r.vols {
		req.LunUuids = append(req.LunUuids, v.lun)
	}
	_, err := call(ctx, r.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.TransferOwnershipResponse, error) {
		return c.TransferOwnership(ctx, req)
	})
	if err != nil {
		return fmt.Errorf("transfer to node %s: %w", req.ToNode, err)
	}
	return r.ownedBy(ctx, to)
}

// ownedBy waits until every running node says that a node owns all volumes.
func (r *rig) ownedBy(ctx context.Context, owner int) error {
	return r.wait(ctx, "node "+harness.Names[owner]+" owns the volumes", func() (bool, string) {
		for i := range harness.Names {
			if r.pair.PID(i) == 0 {
				continue
			}
			for _, v := range r.vols {
				l, err := r.pair.Client(i).GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: v.lun})
				if err != nil {
					return false, err.Error()
				}
				if l.Owner != harness.Names[owner] {
					return false, fmt.Sprintf("node %s says that %s is owned by %s", harness.Names[i], v.name, l.Owner)
				}
			}
		}
		return true, ""
	})
}

// kill ends a node as a crash does and waits until the other serves alone.
func (r *rig) kill(ctx context.Context, node int) error {
	if err := r.pair.Kill(node); err != nil {
		return err
	}
	other := 1 - node
	err := r.wait(ctx, "node "+harness.Names[other]+" is alone", func() (bool, string) {
		s, err := r.pair.Status(ctx, other)
		if err != nil {
			return false, err.Error()
		}
		return s.Phase == targetv1.Phase_PHASE_ALONE || s.Phase == targetv1.Phase_PHASE_RESYNCING, fmt.Sprint(s.Phase, " ", s.Reason)
	})
	if err != nil {
		return err
	}
	if err := r.ownedBy(ctx, other); err != nil {
		return err
	}
	acked := r.meter.Acked()
	return r.until(ctx, func() bool { return r.meter.Acked() >= acked+100 })
}

// restart starts a node, waits until both are in sync, and adds what the resync copied to the
// report.
func (r *rig) restart(ctx context.Context, node int) error {
	if err := r.pair.StartNode(node); err != nil {
		return err
	}
	return r.inSync(ctx)
}

// inSync waits until both nodes are in sync again and adds up what the last resync did: the source
// keeps it.
func (r *rig) inSync(ctx context.Context) error {
	var saw *targetv1.Resync
	defer r.note.Store(nil)
	err := r.wait(ctx, "both nodes are in sync", func() (bool, string) {
		for i, n := range harness.Names {
			s, err := r.pair.Status(ctx, i)
			if err != nil {
				return false, err.Error()
			}
			if s.Resync != nil && (saw == nil || !s.Resync.Started.AsTime().Before(saw.Started.AsTime())) {
				saw = s.Resync
				note := "resync " + story.Bar(int64(saw.DoneBytes), int64(saw.TotalBytes))
				r.note.Store(&note)
			}
			if s.Phase != targetv1.Phase_PHASE_IN_SYNC {
				return false, fmt.Sprintf("%s: %v %s", n, s.Phase, s.Reason)
			}
		}
		return true, ""
	})
	if err != nil {
		return err
	}
	if saw == nil {
		return errors.New("neither node knows of the resync")
	}
	r.report.Resynced += int64(saw.SentBytes)
	r.report.Checked += int64(saw.DoneBytes)
	what := "only what may differ"
	if saw.Full {
		r.report.FullResync = saw.FullReason
		what = "all, because " + saw.FullReason
	}
	if r.report.Seed == nil {
		r.tell.Fact("resync: %s copied, %s looked at (%s)", story.Bytes(int64(saw.SentBytes)), story.Bytes(int64(saw.DoneBytes)), what)
	}
	return nil
}

// expandAll grows the volumes while they are in use.
func (r *rig) expandAll(ctx context.Context) error {
	for _, v := range r.vols {
		before := v.size
		if v.csi != nil {
			var err error
			if before, err = v.usable(); err != nil {
				return err
			}
		}
		usable, err := r.store.expand(ctx, v, grownSize)
		if err != nil {
			return err
		}
		// A filesystem keeps some of the device for itself.
		if slack := grownSize / 32; usable < grownSize-slack || usable > grownSize {
			return fmt.Errorf("%s has %d usable bytes after the expansion to %d", v.name, usable, grownSize)
		}
		if v.dev != nil { // of a mounted volume the filesystem reads the end itself
			if _, err := v.dev.ReadAt(ctx, make([]byte, ledger.BlockSize), grownSize-ledger.BlockSize); err != nil {
				return fmt.Errorf("%s: the last block after the expansion: %w", v.name, err)
			}
		}
		r.tell.Fact("%s: %s -> %s usable", v.name, story.Bytes(before), story.Bytes(usable))
	}
	return nil
}

// growLoad has the writers use the new space too.
func (r *rig) growLoad(ctx context.Context) error {
	for i, s := range r.streams {
		reg := load.Region{Off: volumeSize + 64<<20, Blocks: r.opt.blocks / 8}
		if f, ok := s.Target.(*load.File); ok && r.vols[i].kind == mounted {
			reg.Off = int64(s.Ledger.Len()) * ledger.BlockSize
			if err := f.Reserve(reg); err != nil {
				return err
			}
		}
		s.Grow(reg)
	}
	return r.filled(ctx)
}

// checkClone makes a clone of a snapshot, attaches it beside the original and judges its content.
func (r *rig) checkClone(ctx context.Context, v *volume, s *load.Stream, snapshot string, m *ledger.Moment) error {
	regions := s.Regions()
	begun := time.Now()
	c, err := r.store.create(ctx, "pvc-clone", v.kind, v.size, snapshot)
	if c != nil {
		r.vols, r.used = append(r.vols, c), append(r.used, c)
	}
	if err != nil {
		return err
	}
	r.tell.Fact("%s: %s, %s, in %.1f s", c.name, story.Bytes(c.size), c.kind, time.Since(begun).Seconds())
	t, err := r.store.open(c)
	if err != nil {
		return err
	}
	if c.csi != nil { // a device of raw I/O is closed with its volume
		defer t.Close()
	}
	if err := s.VerifyMoment(ctx, t, m, regions, func(int) {}); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	r.tell.Fact("the clone is one instant of the original: %d blocks checked; %d writes were recorded around the snapshot", m.Blocks(), m.Changes())
	return nil
}
