package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// staleAfter is how old a lock without a holder has to be. Its holders read a file or write one.
const staleAfter = 2 * time.Second

// dbLock is the lock of open-iscsi's database: a hard link, which says nothing about who made it (usr/idbm.c, idbm_lock). Each look at
// the database waits 30 s for it, longer than we wait for a login; what then happens depends on the version.
const dbLock = "/run/lock/iscsi/lock.write"

// freeDB takes a lock of open-iscsi's database away whose holder was killed: by us when its time was over, together with the plugin when
// its container ended, or by anybody else. Without that, nobody could log in or out on this worker until it restarts. A lock
// that somebody holds is left to iscsiadm, which waits for it.
func (l *linux) freeDB(ctx context.Context) error {
	l.freeing.Lock() // of two that look, the second must not take what iscsiadm has locked since for the first
	defer l.freeing.Unlock()
	path := l.path(dbLock)
	var err error
	poll(ctx, 2*staleAfter, func() bool {
		var since, age time.Duration
		if since, age, err = linked(path); err != nil {
			return true
		}
		if 0 <= age && age < staleAfter { // below zero when the clock was put back
			return false
		}
		var holder int
		if holder, err = l.before("iscsiadm", since); err != nil || holder != 0 {
			return true
		}
		err = os.Remove(path)
		return true
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the lock of open-iscsi's database: %w", err)
	}
	return nil
}

// linked tells when a hard link was made, which is the last change of its file's inode: in the machine's uptime, and how long ago.
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

// before finds a process of the worker by its name that was there at a time after the machine's start, or 0.
func (w worker) before(name string, at time.Duration) (pid int, err error) {
	const tick = time.Second / 100 // of the kernel's times in /proc, on every architecture (proc(5), USER_HZ)
	stats, err := filepath.Glob(filepath.Join(filepath.Dir(w.proc), "[0-9]*", "stat"))
	if err != nil {
		return 0, err
	}
	for _, s := range stats {
		raw, err := os.ReadFile(s)
		if err != nil {
			continue // has ended
		}
		// The name stands in brackets, and may have some itself. The 22nd field is the start.
		_, rest, _ := strings.Cut(string(raw), "(")
		end := strings.LastIndexByte(rest, ')')
		if end < 0 || rest[:end] != name {
			continue
		}
		fields := strings.Fields(rest[end+1:])
		if len(fields) < 20 || fields[0] == "Z" {
			continue
		}
		start, err := strconv.ParseInt(fields[19], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s, err)
		}
		if time.Duration(start)*tick <= at+tick {
			return strconv.Atoi(filepath.Base(filepath.Dir(s)))
		}
	}
	return 0, nil
}
