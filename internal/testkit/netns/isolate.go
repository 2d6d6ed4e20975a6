package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// isolatedEnv marks the process that runs in namespaces of its own.
const isolatedEnv = "GEMEL_TEST_ISOLATED"

// Isolated is true in the process that Isolate has started.
func Isolated() bool { return os.Getenv(isolatedEnv) != "" }

// Isolate runs this program again, with the same arguments, in a network and a mount namespace of
// its own, and returns its exit code. Nothing that the copy makes is visible outside, and the
// kernel undoes all of it when the copy and its children have ended, however they end. Interrupts
// are passed on.
func Isolate(ctx context.Context) (int, error) {
	exe, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolatedEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A group of its own: the terminal's interrupt comes once, from here.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Setpgid: true,
		Pdeathsig: syscall.SIGTERM}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	// The parent-death signal is tied to the thread that forks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("namespaces: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			ctx = context.Background()
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return max(exit.ExitCode(), 1), nil
			}
			return 0, err
		}
	}
}
