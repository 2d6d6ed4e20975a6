package userspace

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// teardown performs the steps of a plan.
func (a *Attacher) teardown(ctx context.Context, dir string, r *record, o observed, force bool) error {
	steps, err := plan(o, force)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := a.perform(ctx, dir, r, s, force); err != nil {
			return fmt.Errorf("%s: %w", s.do, err)
		}
	}
	a.log.Info("detached", "volume", r.Attachment.VolumeID, "generation", r.Attachment.Generation, "forced", force)
	return nil
}

func (a *Attacher) perform(ctx context.Context, dir string, r *record, s step, force bool) error {
	mnt := filepath.Join(dir, mountName)
	switch s.do {
	case doKill:
		return killHolder(ctx, dir)
	case doUmountDev:
		return unmountAll(s.loop)
	case doFlush:
		limited, cancel := context.WithTimeout(ctx, a.cfg.Deadline+5*time.Second)
		defer cancel()
		if err := flushLoop(limited, s.loop); err != nil {
			if ctx.Err() != nil {
				return err
			}
			// The volume is being removed and its device no longer responds: hanging here would
			// block the removal forever. Killing the holder makes hanging I/O fail.
			a.log.Error("flush failed, buffered data is lost", "volume", r.Attachment.VolumeID, "device", s.loop.path, "err", err)
			if errors.Is(err, context.DeadlineExceeded) {
				return killHolder(ctx, dir)
			}
		}
		return nil
	case doClear:
		err := clearLoop(ctx, s.loop, r.Inode)
		if err == nil || force {
			return nil // in a forced teardown the device is released when its last user closes it
		}
		return fmt.Errorf("%w: %s is still open: %w", attach.ErrBusy, s.loop.path, err)
	case doUmount:
		return unmountFuse(ctx, mnt, force)
	case doStop:
		return stopHolder(ctx, dir, 5*time.Second)
	case doForget:
		return forget(dir)
	}
	return fmt.Errorf("unknown step %q", s.do)
}

// unmountFuse waits until the kernel drops the loop device's last reference, a moment after its
// release.
func unmountFuse(ctx context.Context, mnt string, force bool) error {
	var err error
	perr := poll(ctx, 3*time.Second, func() bool {
		err = unix.Unmount(mnt, 0)
		return err == nil || !errors.Is(err, unix.EBUSY)
	})
	if perr != nil && force {
		err = unix.Unmount(mnt, unix.MNT_DETACH)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // is not mounted
		err = nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", attach.ErrBusy, mnt, err)
	}
	return nil
}

// unmountAll removes every mount of a dead device, the newest first.
func unmountAll(l loop) error {
	mounts, err := mountsOf(l.rdev)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m, 0); err != nil {
			err = unix.Unmount(m, unix.MNT_DETACH)
			if err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
			}
		}
	}
	return errors.Join(errs...)
}
