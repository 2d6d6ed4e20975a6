// Package lab is the bench that a demo runs on: one temporary folder, below which everything is,
// and what hangs on it in the kernel: processes, mounts, loop devices. Whatever state a run is in,
// the folder alone is enough to undo it.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/loopdev"
)

const prefix = "gemel-demo-"

// Lab is one run's folder. Executables of the run are in Dir/bin and nowhere else: that is how its
// processes are known.
type Lab struct {
	Dir  string
	lock *os.File
}

// New makes a folder below base (the system's folder for temporary files if empty). Folders there
// whose run was killed before it could clean up are cleaned up first; what was found is returned.
func New(base string) (l *Lab, swept []string, err error) {
	if base == "" {
		base = os.TempDir()
	}
	if base, err = filepath.Abs(base); err != nil {
		return nil, nil, err
	}
	if base, err = filepath.EvalSymlinks(base); err != nil { // the kernel names files by their real path
		return nil, nil, err
	}
	old, err := filepath.Glob(filepath.Join(base, prefix+"*"))
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range old {
		if f, ok := abandoned(dir); ok {
			swept = append(swept, dir)
			err = errors.Join(err, reclaim(dir), f.Close())
		}
	}
	if err != nil {
		return nil, swept, fmt.Errorf("cleaning up after an earlier run: %w", err)
	}
	dir, err := os.MkdirTemp(base, prefix)
	if err != nil {
		return nil, swept, err
	}
	l = &Lab{Dir: dir}
	if l.lock, err = os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = syscall.Flock(int(l.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Mkdir(l.Path("bin"), 0o700)
	}
	if err != nil {
		return nil, swept, errors.Join(err, os.RemoveAll(dir))
	}
	return l, swept, nil
}

// lockName is locked as long as the run lives; the kernel releases it with the process.
const lockName = "lock"

// abandoned takes the lock of a run that is dead. A folder without the file is about to get it, or
// is not ours.
func abandoned(dir string) (*os.File, bool) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if err != nil {
		return nil, false
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, false
	}
	return f, true
}

// Path is a path below the folder.
func (l *Lab) Path(elem ...string) string { return filepath.Join(append([]string{l.Dir}, elem...)...) }

// Close leaves nothing behind: it kills what still runs, unmounts, detaches, removes.
func (l *Lab) Close() error { return errors.Join(reclaim(l.Dir), l.lock.Close()) }

// Build compiles a command of the module at root into Dir/bin and returns its path. An interrupted
// build cleans up.
func (l *Lab) Build(ctx context.Context, root, pkg string) (string, error) {
	out, tmp := l.Path("bin", filepath.Base(pkg)), l.Path("gotmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOTMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if b, err := cmd.CombinedOutput(); err != nil {
		if c := context.Cause(ctx); c != nil {
			return "", c
		}
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, b)
	}
	return out, os.RemoveAll(tmp)
}

// reclaim undoes everything that belongs to a folder. Processes first: one that waits for I/O holds
// mounts. Loop devices before mounts: one whose file is on a mount that is taken away by force is
// known by nothing any more. One that is mounted itself goes with its mount.
func reclaim(dir string) error {
	deadline := time.Now().Add(30 * time.Second)
	var err error
	for {
		err = errors.Join(killAll(dir), detachAll(dir), unmountAll(dir))
		if err == nil {
			var left []string
			if left, err = Leftovers(dir); err == nil && len(left) == 0 {
				return os.RemoveAll(dir) // nothing is mounted below it any more
			} else if err == nil {
				err = fmt.Errorf("still there: %s", strings.Join(left, ", "))
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cleaning up %s: %w", dir, err)
		}
		time.Sleep(20 * time.Millisecond) // the pace of a bounded poll
	}
}

// Leftovers lists processes, mounts and loop devices that belong to a folder.
func Leftovers(dir string) ([]string, error) {
	var out []string
	pids, err := processes(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range pids {
		out = append(out, "process "+strconv.Itoa(p))
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		out = append(out, "mount "+m)
	}
	loops, err := loopdev.On(dir)
	for _, l := range loops {
		out = append(out, "loop device "+l)
	}
	return out, err
}

// processes are those that run an executable of the folder, zombies excepted: they have no
// executable any more.
func processes(dir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if exe, err := os.Readlink("/proc/" + e.Name() + "/exe"); err == nil && strings.HasPrefix(exe, filepath.Join(dir, "bin")+"/") {
			out = append(out, pid)
		}
	}
	return out, nil
}

func killAll(dir string) error {
	pids, err := processes(dir)
	if err != nil {
		return err
	}
	for _, p := range pids {
		if e := syscall.Kill(p, syscall.SIGKILL); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("kill %d: %w", p, e))
		}
	}
	return err
}
