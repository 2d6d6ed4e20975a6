package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// facts are the inputs for --attach.
type facts struct {
	missing                   []string // modules that the worker's kernel does not have
	kernelHeld, userspaceHeld int      // volumes that are attached in each way
}

// choice is a way of attaching, and why.
type choice struct{ mode, why string }

// choose returns the requested way. Attached volumes never lose their way of attaching. Only with
// auto, it uses userspace for a kernel that cannot attach, but never for a worker that lacks a
// package or a daemon: that is reported, for an administrator to fix.
func choose(requested string, f facts) (choice, error) {
	held := map[string]int{attachKernel: f.kernelHeld, attachUserspace: f.userspaceHeld}
	other := map[string]string{attachKernel: attachUserspace, attachUserspace: attachKernel}
	c := choice{requested, "--attach " + requested}
	if requested == attachAuto {
		switch {
		case f.kernelHeld > 0:
			c = choice{attachKernel, fmt.Sprintf("%d volumes are attached this way", f.kernelHeld)}
		case f.userspaceHeld > 0:
			c = choice{attachUserspace, fmt.Sprintf("%d volumes are attached this way", f.userspaceHeld)}
			if len(f.missing) == 0 {
				c.why += "; to use the kernel, drain the worker and restart the node plugin"
			}
		case len(f.missing) > 0:
			c = choice{attachUserspace, "the kernel has no " + strings.Join(f.missing, ", ")}
		default:
			c = choice{attachKernel, "the kernel has iSCSI and dm-multipath"}
		}
		c.why = "--attach auto: " + c.why
	}
	if n := held[other[c.mode]]; n > 0 {
		return c, fmt.Errorf("--attach %s: %d volumes are still attached in another way (%s): drain this worker first, or set --attach %s again", requested, n, other[c.mode], other[c.mode])
	}
	return c, nil
}

// held counts the records of one way of attaching. Names of incomplete records begin with a dot.
func held(dir string) (n int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			n++
		}
	}
	return n, err
}

// choose chooses by this worker and its attachments.
func (c *config) choose(missing func(hostProc string) ([]string, error)) (choice, error) {
	var f facts
	var err error
	if f.kernelHeld, err = held(filepath.Join(c.StateDir, kernelFolder)); err != nil {
		return choice{}, err
	}
	if f.userspaceHeld, err = held(filepath.Join(c.StateDir, userspaceFolder)); err != nil {
		return choice{}, err
	}
	if c.Attach == attachAuto {
		if f.missing, err = missing(c.HostProc); err != nil {
			return choice{}, fmt.Errorf("--attach auto: %w", err)
		}
	}
	return choose(c.Attach, f)
}
