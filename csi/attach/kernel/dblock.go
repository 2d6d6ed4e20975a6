package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// staleAfter is how old a lock without a holder has to be. Its holders read a file or write one.
const staleAfter = 2 * time.Second

// dbLock is the lock of open-iscsi's database: a hard link, which says nothing about who made it
// (usr/idbm.c, idbm_lock). Each look at the database waits 30 s for it, longer than we wait for a
// login; what then happens depends on the version.
const dbLock = "/run/lock/iscsi/lock.write"

// freeDB takes a lock of open-iscsi's database away whose holder was killed: by us when its time
// was over, together with the plugin when its container ended, or by another process. Without that,
// no process could log in or out on this worker until it restarts. A lock with a live holder is
// left to iscsiadm, which waits for it.
func (l *linux) freeDB(ctx context.Context) error {
	l.freeing.Lock() // of two that look, the second must not take what iscsiadm has locked since for the first
	defer l.freeing.Unlock()
	path := l.path(dbLock)
	var since, age time.Duration
	var err error
	decided := poll(ctx, 2*staleAfter, func() bool {
		since, age, err = linked(path)
		return err != nil || age < 0 || age >= staleAfter // below zero: the clock was put back
	})
	if decided && err == nil {
		var held bool
		if held, err = l.ran("iscsiadm", since); err == nil && !held {
			err = os.Remove(path)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock of the open-iscsi database: %w", err)
	}
	return nil
}

// linked tells when a hard link was made, which is the last change of its file's inode: in the
// machine's uptime, and how long ago.
func linked(path string) (since, age time.Duration, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, err
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return 0, 0, err
	}
	age = time.Since(time.Unix(st.Ctim.Unix()))
	return time.Duration(up.Nano()) - age, age, nil
}

// ran tells whether a process of the worker by that name was there at a time after the machine's
// start, and is still.
func (w worker) ran(name string, at time.Duration) (bool, error) {
	const tick = time.Second / 100 // USER_HZ is 100 on every Linux that Go supports
	proc, err := procfs.NewFS(filepath.Dir(w.proc))
	if err != nil {
		return false, err
	}
	list, err := proc.AllProcs()
	if err != nil {
		return false, err
	}
	for _, x := range list {
		p, err := x.Stat()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // has ended
		}
		if err != nil {
			return false, fmt.Errorf("process %d: %w", x.PID, err)
		}
		if p.Comm == name && p.State != "Z" && time.Duration(p.Starttime)*tick <= at+tick {
			return true, nil
		}
	}
	return false, nil
}

// iscsiadm runs the worker's, once no lock of a dead process is left on its database.
func (l *linux) iscsiadm(ctx context.Context, limit time.Duration, args ...string) error {
	if err := l.freeDB(ctx); err != nil {
		return err
	}
	_, err := l.run(ctx, limit, append([]string{"iscsiadm"}, args...)...)
	return err
}
