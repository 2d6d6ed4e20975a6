package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// doMap takes a step on a map. dmsetup gets the UUID where it takes one, so that it cannot hit
// another device; elsewhere a map is known by its name only, so the owner of that name is checked
// once more.
func (l *linux) doMap(ctx context.Context, s step) error {
	m, ok, err := l.still(s.dm)
	if err != nil || !ok {
		return err
	}
	uuid := m.uuid
	switch s.do {
	case doResume:
		// One that multipathd is making or reloading right now is suspended for a moment, at first
		// without a table.
		if poll(ctx, resumeLimit, func() bool { now, ok, err := l.still(m); return err == nil && (!ok || !now.suspended) }) {
			return nil
		}
		_, err = l.run(ctx, toolLimit, "dmsetup", "resume", "--uuid", uuid)
		if errors.Is(err, errExit) {
			err = nil // whether it is resumed is observed
		}
	case doResizeMap:
		_, err = l.run(ctx, toolLimit, "multipathd", "resize", "map", m.name)
		if errors.Is(err, errExit) {
			err = nil // whether it has the size is observed
		}
	case doRegroup:
		_, err = l.run(ctx, toolLimit, "multipathd", "reload", "map", m.name)
		if errors.Is(err, errExit) {
			err = nil // the next pass sees the groups
		}
	case doFlush:
		return l.flush(ctx, m, uuid)
	case doFail:
		if err := l.nudge(ctx, "disablequeueing", "map", m.name); err != nil {
			return err
		}
		_, err = l.run(ctx, toolLimit, "dmsetup", "message", "--uuid", uuid, "0", "fail_if_no_path")
		if errors.Is(err, errExit) {
			err = nil // its table has no multipath target any more
		}
	case doWipe:
		// Neither waits for I/O nor freezes the filesystem: both could hang.
		_, err = l.run(ctx, toolLimit, "dmsetup", "wipe_table", "--noflush", "--nolockfs", m.name)
	case doUnmount:
		return l.unmount(ctx, m)
	case doRemove:
		_, err = l.run(ctx, toolLimit, "dmsetup", "remove", "--uuid", uuid)
		if errors.Is(err, errExit) {
			time.Sleep(500 * time.Millisecond) // the last user may be about to end
			err = nil                          // whether it is gone is observed
		}
	case doGrowStripes:
		return l.growStripes(ctx, m, s.table)
	case doDropStripes:
		return l.dropStripes(ctx, m)
	default:
		return fmt.Errorf("unknown step %q", s.do)
	}
	return err
}

// still finds a map again, by number and UUID.
func (l *linux) still(m dmMap) (dmMap, bool, error) {
	maps, err := l.maps()
	if err != nil {
		return m, false, err
	}
	i := slices.IndexFunc(maps, func(n dmMap) bool { return n.uuid == m.uuid && n.kernel == m.kernel })
	if i < 0 {
		return m, false, nil
	}
	return maps[i], true, nil
}

// flush removes a map that is not in use. What was written is on the LUN then, or the map stays.
func (l *linux) flush(ctx context.Context, m dmMap, uuid string) error {
	if u := m.users(); len(u) > 0 {
		return fmt.Errorf("%w: /dev/%s is used by %s", attach.ErrBusy, m.kernel, strings.Join(u, ", "))
	}
	// The process that has it open is mostly udev, which looks into a device whenever something
	// about it has changed.
	var err error
	poll(ctx, openLimit, func() bool {
		_, err = l.run(ctx, flushLimit, "multipath", "-f", m.name)
		return !inUse(err)
	})
	if err == nil {
		return nil
	}
	// It suspends the map on its way, and one that stays so makes everything that touches it
	// unkillable.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolLimit)
	defer cancel()
	if now, ok, lerr := l.still(m); lerr == nil && ok && now.suspended {
		_, rerr := l.run(ctx, toolLimit, "dmsetup", "resume", "--uuid", uuid)
		err = errors.Join(err, rerr)
	}
	if inUse(err) {
		return fmt.Errorf("%w: %w", attach.ErrBusy, err)
	}
	return err
}

// inUse: multipath found that somebody has the map open.
func inUse(err error) bool {
	var exit *exitError
	return errors.As(err, &exit) && strings.Contains(exit.output, "in use")
}

// resumeLimit is how long a suspended map is left to the process that suspended it.
const resumeLimit = 2 * time.Second

// openLimit is how long a flush waits for somebody who has the map open for a moment.
const openLimit = 5 * time.Second

// unmount takes every mount of a dead map away, here and for the worker, the last made first.
func (l *linux) unmount(ctx context.Context, m dmMap) error {
	mounts := slices.Clone(m.mounts)
	slices.Reverse(mounts)
	var errs []error
	for _, at := range mounts {
		err := bounded(ctx, toolLimit, "unmount "+at, func() error {
			err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
				return nil
			}
			return err
		})
		if len(l.enter) > 0 {
			if _, werr := l.run(ctx, toolLimit, "umount", "-l", at); !errors.Is(werr, errExit) {
				err = errors.Join(err, werr)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
