package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// facts are what --attach is judged by.
type facts struct {
	missing                   []string // modules that the worker's kernel cannot have
	kernelHeld, userspaceHeld int      // volumes that are attached in each way
}

// choice is a way of attaching, and why.
type choice struct{ mode, why string }

// choose takes what was asked for. What is attached in one way is never forgotten for the other one. Of its own, and only with auto, it takes
// userspace for a kernel that cannot attach, never for a worker that lacks a package or a daemon: that is reported, and fixed by a person.
func choose(asked string, f facts) (choice, error) {
	held := map[string]int{attachKernel: f.kernelHeld, attachUserspace: f.userspaceHeld}
	other := map[string]string{attachKernel: attachUserspace, attachUserspace: attachKernel}
	c := choice{asked, "--attach " + asked + " says so"}
	if asked == attachAuto {
		switch {
		case f.kernelHeld > 0:
			c = choice{attachKernel, fmt.Sprintf("%d volumes are attached so", f.kernelHeld)}
		case f.userspaceHeld > 0:
			c = choice{attachUserspace, fmt.Sprintf("%d volumes are attached so", f.userspaceHeld)}
			if len(f.missing) == 0 {
				c.why += "; the kernel could: drain the worker and restart the node plugin"
			}
		case len(f.missing) > 0:
			c = choice{attachUserspace, "the kernel has no " + strings.Join(f.missing, ", ")}
		default:
			c = choice{attachKernel, "the kernel has iSCSI and dm-multipath"}
		}
		c.why = "--attach auto: " + c.why
	}
	if n := held[other[c.mode]]; n > 0 {
		return c, fmt.Errorf("--attach %s: %d volumes are still attached in another way (%s): drain this worker first, or go back to it", asked, n, other[c.mode])
	}
	return c, nil
}

// held counts the records of one way of attaching. What a crash left of one that was never finished begins with a dot.
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

// choose looks at this worker and at what it holds.
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
