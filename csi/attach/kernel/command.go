package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	k8swait "k8s.io/apimachinery/pkg/util/wait"

	"github.com/gemel-storage/gemel/internal/wait"
)

// errExit: a tool of the worker ended with another code than 0.
var errExit = errors.New("ended with code")

// exitError is a command that ended badly.
type exitError struct {
	command string
	code    int
	output  string
}

func (e *exitError) Error() string {
	return fmt.Sprintf("%s %v %d: %s", e.command, errExit, e.code, e.output)
}
func (e *exitError) Is(target error) bool { return target == errExit }

// toolLimit bounds a command that has no reason to take long.
const toolLimit = 20 * time.Second

// namespaces that the worker's tools are run in. Their sockets are abstract ones, which belong to a
// network namespace; the kernel's iSCSI netlink exists in the first one only; and device-mapper
// waits for udev on semaphores, which belong to an IPC namespace.
var namespaces = []struct{ name, flag string }{{"mnt", "--mount"}, {"net", "--net"}, {"ipc", "--ipc"}}

// worker says how to get from this process to the worker it runs on.
type worker struct {
	proc  string   // of its first process
	root  string   // its root folder as this process sees it
	enter []string // what a command line begins with
}

// findWorker compares namespaces. Where they are the same, nothing is entered.
func findWorker(proc string) (w worker, err error) {
	w = worker{proc: proc, root: "/"}
	for _, n := range namespaces {
		theirs, err := os.Readlink(filepath.Join(proc, "ns", n.name))
		if err != nil {
			return w, fmt.Errorf("the worker's %s namespace: %w: the plugin needs root, and the machine's first process in proc (hostPID, or a mount of the machine's /proc)", n.name, err)
		}
		ours, err := os.Readlink("/proc/self/ns/" + n.name)
		if err != nil {
			return w, err
		}
		if theirs == ours {
			continue
		}
		w.enter = append(w.enter, n.flag+"="+filepath.Join(proc, "ns", n.name))
		if n.name == "mnt" {
			w.root = filepath.Join(proc, "root")
		}
	}
	if len(w.enter) > 0 {
		w.enter = append(append([]string{"nsenter"}, w.enter...), "--")
	}
	return w, nil
}

// path is where this process sees a file of the worker.
func (w worker) path(elem ...string) string {
	return filepath.Join(append([]string{w.root}, elem...)...)
}

// run executes a tool of the worker and returns what it wrote to stdout. It is killed with its
// children when its time or the context ends, and waited for; one that even then does not end,
// because the kernel holds it, is waited for in the background. Secrets have no place in the
// arguments.
func (w worker) run(ctx context.Context, limit time.Duration, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	full := append(append([]string{}, w.enter...), argv...)
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a daemon that it left behind may hold its output
	name := strings.Join(argv, " ")
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- cmd.Run()
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(3 * time.Second):
			return "", fmt.Errorf("%s: does not even end when it is killed: %w", name, context.Cause(ctx))
		}
	}
	var exit *exec.ExitError
	ended := errors.As(err, &exit) && exit.Exited()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return out.String(), nil
	case !ended && ctx.Err() != nil:
		return out.String(), fmt.Errorf("%s: killed: %w", name, context.Cause(ctx))
	case ended:
		text := strings.Join(strings.Fields(bad.String()+" "+out.String()), " ")
		return out.String(), &exitError{name, exit.ExitCode(), text[:min(len(text), 500)]}
	}
	return out.String(), fmt.Errorf("%s: %w", name, err)
}

// bounded runs f, but waits no longer than the context or the limit. f must end by itself at some
// later time.
func bounded(ctx context.Context, limit time.Duration, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return wait.Bounded(ctx, what, f)
}

// poll asks until ok says yes; false when the limit or the context ended before.
func poll(ctx context.Context, limit time.Duration, ok func() bool) bool {
	return k8swait.PollUntilContextTimeout(ctx, 20*time.Millisecond, limit, true, func(context.Context) (bool, error) { return ok(), nil }) == nil
}
