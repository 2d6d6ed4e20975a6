package userspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/attach/userspace/holder"
)

// lockedByOther reports whether a holder runs: it inherits the lock with its file description and
// keeps it until it ends.
func lockedByOther(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	// Shared, so that two concurrent checks do not take each other for a holder.
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// startHolder starts the process and waits until it serves. After an error no process runs.
func (a *Attacher) startHolder(ctx context.Context, dir string, r *record) (ready holder.Ready, err error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return ready, err
	}
	defer func() { _ = lock.Close() }()
	if err := poll(ctx, time.Second, func() bool { return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }); err != nil {
		return ready, fmt.Errorf("%w: an earlier holder of %s still runs", attach.ErrBusy, r.Attachment.VolumeID)
	}
	log, err := os.OpenFile(filepath.Join(dir, "holder.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return ready, err
	}
	defer func() { _ = log.Close() }()
	answer, tell, err := os.Pipe()
	if err != nil {
		return ready, err
	}
	defer func() { _ = answer.Close() }()

	// The credentials go through a pipe, so that they are not visible in arguments, environment or
	// a file.
	stdin, in, err := os.Pipe()
	if err != nil {
		return ready, errors.Join(err, tell.Close())
	}
	defer func() { _ = in.Close() }()
	end, err := a.spawner.spawn(ctx, dir, holderFiles{stdin: stdin, log: log, tell: tell, lock: lock})
	_, _ = stdin.Close(), tell.Close()
	if err != nil {
		return ready, fmt.Errorf("attach holder: %w", err)
	}
	defer func() { end(err != nil) }()
	c := holder.ConfigOf(r.Attachment)
	c.File, c.Inode = r.File, r.Inode
	c.Deadline, c.NoUnitAfter, c.OpenLimit = a.cfg.Deadline, a.cfg.NoUnitAfter, a.cfg.OpenLimit
	if err = errors.Join(json.NewEncoder(in).Encode(c), in.Close()); err != nil {
		return ready, fmt.Errorf("attach holder: configuration: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = answer.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = json.NewDecoder(io.LimitReader(answer, 64<<10)).Decode(&ready)
	switch {
	case err != nil && ctx.Err() != nil:
		return ready, fmt.Errorf("attach holder: not ready: %w", context.Cause(ctx))
	case err != nil:
		return ready, fmt.Errorf("%w: the holder ended before it was ready, see %s: %w", attach.ErrFailed, log.Name(), err)
	case ready.Refused:
		err = fmt.Errorf("%w: %w: %s", attach.ErrFailed, attach.ErrCredentials, ready.Error)
		return ready, err
	case ready.Error != "":
		err = fmt.Errorf("%w: %s", attach.ErrFailed, ready.Error)
		return ready, err
	}
	return ready, nil
}

// stopHolder waits until the holder ends, then sends SIGTERM, which it obeys while it has no mount,
// and then SIGKILL.
func stopHolder(ctx context.Context, dir string, patience time.Duration) error {
	gone := func() bool {
		alive, err := lockedByOther(dir)
		return err == nil && !alive
	}
	defer reap(dir)
	if poll(ctx, patience, gone) == nil {
		return nil
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		// The holder writes its identity first, so a missing file will be written soon.
		err := poll(ctx, 5*time.Second, func() bool { return holder.Signal(dir, sig) == nil || gone() })
		if err != nil {
			return fmt.Errorf("the holder in %s has not written its identity: %w", dir, err)
		}
		if poll(ctx, 3*time.Second, gone) == nil {
			return nil
		}
	}
	return fmt.Errorf("%w: the holder in %s does not end", attach.ErrBusy, dir)
}

// killHolder kills the holder; unwritten data is lost.
func killHolder(ctx context.Context, dir string) error {
	defer reap(dir)
	return poll(ctx, 10*time.Second, func() bool {
		alive, err := lockedByOther(dir)
		if err == nil && !alive {
			return true
		}
		_ = holder.Signal(dir, unix.SIGKILL)
		return false
	})
}

// reap waits for a holder that is a child of this process, so that it does not stay a zombie.
func reap(dir string) {
	if id, err := holder.ReadIdentity(dir); err == nil {
		_ = poll(context.Background(), time.Second, func() bool {
			pid, err := unix.Wait4(id.PID, nil, unix.WNOHANG, nil)
			return pid != 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}
}
