// Package resident is for processes that block devices of their own machine depend on: targets, and
// holders of userspace attachments. When memory is short the kernel writes dirty pages out to such
// a device, and the process has to take them without waiting for that itself.
package resident

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotPermitted: the process goes without. The text says what it lacks.
var ErrNotPermitted = errors.New("not permitted")

// Lock keeps all pages of this process in memory, those to come as well, each from its first use on
// (mlockall with MCL_ONFAULT): Go reserves far more than it uses. Where RLIMIT_MEMLOCK counts
// nothing is locked: the kernel would refuse memory beyond it from then on, and Go ends a program
// to which that happens.
func Lock() error {
	may, err := capable(unix.CAP_IPC_LOCK)
	if err != nil {
		return err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("RLIMIT_MEMLOCK: %w", err)
	}
	if !may && limit.Cur != unix.RLIM_INFINITY {
		return fmt.Errorf("%w: it requires CAP_IPC_LOCK, or RLIMIT_MEMLOCK (ulimit -l) without a limit", ErrNotPermitted)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("mlockall: %w", err)
	}
	return nil
}

// capable tells whether this thread has a capability below 32.
func capable(capability uint) (bool, error) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return false, fmt.Errorf("capabilities: %w", err)
	}
	return data[0].Effective&(1<<capability) != 0, nil
}

// StartFlusher starts a process whose memory allocations never wait for block I/O, and whose writes
// are not held back because of other devices' dirty pages (PR_SET_IO_FLUSHER, Linux 5.6): the
// writeback of its own device may be waiting for it. The setting belongs to a thread and is
// inherited over fork, exec and clone, so it is made on this thread around the fork. Without the
// right to (CAP_SYS_RESOURCE) the process goes without.
func StartFlusher(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_IO_FLUSHER, 0, 0, 0, 0) }()
	}
	return cmd.Start()
}

// variable marks a process that has been through BecomeFlusher, should the setting not survive it.
const variable = "GEMEL_IO_FLUSHER"

// BecomeFlusher makes this process one. Other threads than this one run already, so the program
// begins again in the same process, with what it was started with; whatever it has open that is not
// for its children is closed. Where it does return, nil means that this has happened.
func BecomeFlusher() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	on, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: it requires CAP_SYS_RESOURCE", ErrNotPermitted)
	case err != nil:
		return fmt.Errorf("PR_GET_IO_FLUSHER: %w", err)
	case on == 1:
		return nil
	case os.Getenv(variable) != "":
		return errors.New("the setting is lost after exec")
	}
	if err := unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_IO_FLUSHER: %w", err)
	}
	err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), variable+"=1"))
	_ = unix.Prctl(unix.PR_SET_IO_FLUSHER, 0, 0, 0, 0)
	return fmt.Errorf("exec: %w", err)
}
