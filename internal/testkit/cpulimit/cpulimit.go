// Package cpulimit bounds how much of a processor processes may use, by a control group (version 1
// or 2). It needs root. A benchmark uses it so that its load generator, which shares the machine
// with what it loads, is not the limit.
package cpulimit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Period is what a limit is counted over: processes that have used up their share are stopped until
// the next one begins. The kernel's default of 100 ms would stop a node for longer than most pauses
// that are measured.
const Period = 10 * time.Millisecond

// Group is a control group.
type Group struct {
	dir string
	v2  bool
}

// roots are where control groups with limits of processors are: version 2, then version 1.
var roots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/cpu"}

// ErrNone is that of a machine without control groups that can be made here.
var ErrNone = errors.New("cpulimit: no control group with limits of processors can be made on this machine")

// New makes a group without a limit. Close removes it.
func New(name string) (*Group, error) {
	var errs []error
	for i, root := range roots {
		g := &Group{dir: filepath.Join(root, fmt.Sprintf("%s-%d", name, os.Getpid())), v2: i == 0}
		err := os.Mkdir(g.dir, 0o755)
		if err == nil {
			if _, err = os.Stat(filepath.Join(g.dir, g.file())); err == nil {
				return g, nil
			}
			err = errors.Join(err, os.Remove(g.dir))
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrNone, errors.Join(errs...))
}

func (g *Group) file() string {
	if g.v2 {
		return "cpu.max"
	}
	return "cpu.cfs_quota_us"
}

// Limit lets all processes of the group together use so much of one processor; 0: as much as there
// is.
func (g *Group) Limit(processors float64) error {
	period := strconv.FormatInt(Period.Microseconds(), 10)
	quota := strconv.FormatInt(int64(processors*float64(Period.Microseconds())), 10)
	if g.v2 {
		if processors == 0 {
			quota = "max"
		}
		return g.write("cpu.max", quota+" "+period)
	}
	if processors == 0 {
		quota = "-1"
	}
	return errors.Join(g.write("cpu.cfs_period_us", period), g.write("cpu.cfs_quota_us", quota))
}

func (g *Group) write(file, value string) error {
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(value), 0); err != nil {
		return fmt.Errorf("cpulimit: %q to %s: %w", value, file, err)
	}
	return nil
}

// Wrap is a command that joins the group and becomes the command that follows it.
func (g *Group) Wrap() []string {
	return []string{"/bin/sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs")}
}

// Throttled is for how long processes of the group have been stopped.
func (g *Group) Throttled() (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err != nil {
		return 0, fmt.Errorf("cpulimit: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		for key, unit := range map[string]time.Duration{"throttled_time ": time.Nanosecond, "throttled_usec ": time.Microsecond} {
			if s, ok := strings.CutPrefix(strings.TrimSpace(line), key); ok {
				n, err := strconv.ParseInt(s, 10, 64)
				return time.Duration(n) * unit, err
			}
		}
	}
	return 0, errors.New("cpulimit: cpu.stat says nothing of throttling")
}

// closeLimit is how long Close waits for processes that have just ended to leave the group.
const closeLimit = 5 * time.Second

// Close removes the group, whose processes must have ended.
func (g *Group) Close() error {
	until := time.Now().Add(closeLimit)
	for {
		err := os.Remove(g.dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("cpulimit: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
