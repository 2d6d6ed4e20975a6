package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/memlimit"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// memoryLimit is the memory of a node: the least that a StorageCluster may give its targets
// (docs/decisions/0034).
const memoryLimit = 512 << 20

// confinement bounds the memory of both nodes, each in a cgroup of its own, of version 1 or 2,
// which holds the page cache of their disks too, as a container does. Where this machine does not
// allow that, Go gets the limit that it would follow, and the resident memory is what counts.
type confinement struct {
	dirs [2]string // empty: no cgroup
	hits string    // the file that counts how often the limit was met
}

const cgroupPrefix = "gemel-chaos-"

// confine makes it; without a cgroup it says why.
func confine() (c confinement, why error) {
	for _, v := range []struct{ root, limit, hits string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.failcnt"},
		{"/sys/fs/cgroup", "memory.max", "memory.events"},
	} {
		sweepGroups(v.root)
		c = confinement{hits: v.hits}
		if why = c.make(v.root, v.limit); why == nil {
			return c, nil
		}
		_ = c.close()
	}
	return confinement{}, why
}

func (c *confinement) make(root, limit string) error {
	for i, n := range harness.Names {
		dir := filepath.Join(root, cgroupPrefix+strconv.Itoa(os.Getpid())+"-"+n)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		c.dirs[i] = dir
		if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(memoryLimit)), 0); err != nil {
			return err
		}
	}
	return nil
}

// sweepGroups removes what a run has left that was killed. A group that is in use stays.
func sweepGroups(root string) {
	dirs, _ := filepath.Glob(filepath.Join(root, cgroupPrefix+"*"))
	for _, d := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(d), cgroupPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			_ = os.Remove(d)
		}
	}
}

// wrap is the command by which a node is started: it goes into its group and becomes the node.
func (c *confinement) wrap(i int) []string {
	if c.dirs[i] == "" {
		return []string{"env", "GOMEMLIMIT=" + strconv.FormatInt(memlimit.Of(memoryLimit), 10)}
	}
	return []string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(c.dirs[i], "cgroup.procs")}
}

func (c *confinement) String() string {
	if c.dirs[0] == "" {
		return "GOMEMLIMIT"
	}
	return "cgroup"
}

// met is how often a node has met the limit, and made do with less page cache.
func (c *confinement) met(i int) int64 {
	if c.dirs[i] == "" {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(c.dirs[i], c.hits))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) { // a number, or the line "max N" among others
		if f := strings.Fields(string(line)); len(f) == 1 || len(f) == 2 && f[0] == "max" {
			n, _ := strconv.ParseInt(f[len(f)-1], 10, 64)
			return n
		}
	}
	return 0
}

// close removes the groups, whose processes have ended.
func (c *confinement) close() error {
	var errs []error
	for i, d := range c.dirs {
		if d == "" {
			continue
		}
		c.dirs[i] = ""
		err := os.Remove(d)
		for end := time.Now().Add(5 * time.Second); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); err = os.Remove(d) {
			time.Sleep(10 * time.Millisecond) // the kernel takes a moment to release what has ended
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// forgetPeak has the kernel measure the peak of a process's resident memory from now on.
func forgetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peak of a process's resident memory, in bytes.
func peak(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return peakIn(string(b))
}

func peakIn(status string) (int64, error) {
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("the process has no VmHWM: it has ended")
}
