package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
)

// run waits for the command; it and its children are killed when its time is over or the asker has
// gone.
func run(ctx context.Context, c guest.Command) (r guest.Result) {
	start := time.Now()
	if c.Seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.Seconds*float64(time.Second)))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdin = bytes.NewReader(c.Stdin)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // a daemon that it left behind may hold its output
	err := cmd.Run()
	r.Stdout, r.Stderr, r.Seconds = out.Bytes(), bad.Bytes(), time.Since(start).Seconds()
	r.Exit = exit(cmd, err)
	if r.Exit == 127 {
		r.Error = fmt.Sprint(err)
	}
	if ctx.Err() != nil {
		r.Exit, r.Error = 124, fmt.Sprintf("killed after %.1f s", r.Seconds)
	}
	return r
}

func exit(cmd *exec.Cmd, err error) int {
	var bad *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &bad):
		if s, ok := bad.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return 128 + int(s.Signal())
		}
		return bad.ExitCode()
	case errors.Is(err, exec.ErrWaitDelay):
		return cmd.ProcessState.ExitCode()
	}
	return 127
}

// processes are those that go on while the asker does something else.
type processes struct {
	mu sync.Mutex
	of map[int]guest.Process
}

func newProcesses() *processes { return &processes{of: map[int]guest.Process{}} }

func (p *processes) start(c guest.Command) (pid int, err error) {
	out := os.Stderr
	if c.Log != "" {
		if out, err = os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return 0, err
		}
		defer out.Close()
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid = cmd.Process.Pid
	p.set(guest.Process{PID: pid, Running: true})
	go func() { p.set(guest.Process{PID: pid, Exit: exit(cmd, cmd.Wait())}) }()
	return pid, nil
}

func (p *processes) set(s guest.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[s.PID] = s
}

func (p *processes) look(pid int) (guest.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.of[pid]
	if !ok {
		return s, fmt.Errorf("process %d was not started here", pid)
	}
	return s, nil
}
