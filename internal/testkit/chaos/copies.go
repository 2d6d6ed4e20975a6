package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gemel-storage/gemel/internal/testkit/compare"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// compare ends both nodes in order and compares their stores; each block must hold what was read
// last on both.
func (x *runner) compare(ctx context.Context) error {
	if s, err := x.rig.pair.Status(ctx, 0); err == nil {
		x.report.Epoch = s.Epoch
	}
	x.rig.hangUp()
	if err := x.rig.disconnect(); err != nil {
		return err
	}
	for i := range harness.Names {
		if err := x.rig.pair.Term(i); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
	}
	for _, d := range x.rig.slow { // what is compared is what the disks hold, not what the page cache shows after an error
		if err := d.Remount(ctx); err != nil {
			return err
		}
	}
	state := x.rig.pair.State
	if x.cfg.Members {
		x.report.MemberDrains = x.rig.rec.memberDrains.Load()
		for i := range state {
			var err error
			if state[i], err = x.rig.flatten(i); err != nil {
				return err
			}
		}
	}
	if x.cfg.Tamper != nil {
		if err := x.cfg.Tamper(state); err != nil {
			return err
		}
	}
	images, err := compare.Stores(ctx, state[0], state[1], func(n int64) { x.report.Compared += n })
	if err != nil {
		return err
	}
	x.report.Images, x.report.Identical = len(images), compare.Identical(images)
	for _, im := range images {
		if !im.Identical {
			x.report.Differ = append(x.report.Differ, im.Name+": "+im.Reason)
		}
	}
	return x.readImages(state)
}

// readImages compares each block under test on each node with what the last read of it brought.
func (x *runner) readImages(state [2]string) error {
	size := x.rig.hosts[0].disks[0].BlockSize()
	buf := make([]byte, size)
	for lun, id := range x.rig.luns {
		for i, n := range harness.Names {
			f, err := os.Open(filepath.Join(state[i], "volumes", "default", "luns", id+".img"))
			if err != nil {
				return err
			}
			for _, k := range x.rig.keys {
				if k.lun != lun {
					continue
				}
				if _, err = f.ReadAt(buf, k.block*int64(size)); err != nil {
					break
				}
				want := x.rig.rec.first[k]
				if v, perr := register.Parse(buf); perr != nil || v != want {
					x.report.LostWrites++
					x.report.Details = append(x.report.Details, fmt.Sprintf("%v on node %s holds %d (%v), the last read brought %d", k, n, v, perr, want))
				}
			}
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}
