package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Serving is the id of the process that serves, with or without a supervisor; 0 if there is none.
func (p *Pair) Serving(i int) int {
	if !p.Supervisors {
		return p.PID(i)
	}
	if pid := p.PID(i); pid != 0 {
		return childOf(pid)
	}
	return 0
}

// childOf is the one child of a process, 0 if it has none at this moment.
func childOf(pid int) int {
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	for _, dir := range all {
		child, err := strconv.Atoi(filepath.Base(dir))
		if state, parent := stateOf(child); err == nil && parent == pid && state != "Z" {
			return child
		}
	}
	return 0
}

// stateOf is the state of a process, empty if there is none, and its parent.
func stateOf(pid int) (state string, parent int) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	// "pid (name) state parent …"; the name may hold anything.
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	parent, _ = strconv.Atoi(f[1])
	return f[0], parent
}

// orphaned waits for the end of a process whose supervisor was killed: until then it holds the
// store.
func orphaned(pid int) error {
	if pid == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	return Wait(ctx, fmt.Sprintf("process %d has ended with its supervisor", pid), func() (bool, string) {
		state, _ := stateOf(pid)
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // the first may be gone before the others
		return state == "" || state == "Z" && len(threads) < 2, state
	})
}

// Crash kills the process that serves, and leaves its supervisor, which starts another one.
func (p *Pair) Crash(i int) error {
	if !p.Supervisors {
		return errors.New("harness: there is no supervisor: set Options.Supervisors, or use Kill")
	}
	return p.SignalProcess(i, syscall.SIGKILL)
}

// SignalProcess sends a signal to the process that serves.
func (p *Pair) SignalProcess(i int, s syscall.Signal) error {
	pid := p.Serving(i)
	if pid == 0 {
		return fmt.Errorf("harness: no process of node %s serves", Names[i])
	}
	return syscall.Kill(pid, s)
}

// WaitSupervisors waits until each node would hear from the other's supervisor.
func (p *Pair) WaitSupervisors(ctx context.Context) error {
	return Wait(ctx, "both nodes are connected to the other's supervisor", func() (bool, string) {
		for i := range Names {
			s, err := p.Status(ctx, i)
			if err != nil || !s.Supervisor.GetPeerConnected() {
				return false, fmt.Sprintf("node %s: %v, %v", Names[i], s.GetSupervisor(), err)
			}
		}
		return true, ""
	})
}
