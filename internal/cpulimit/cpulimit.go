// Package cpulimit says how many CPUs a process may use, and how much CPU time it has used.
package cpulimit

import (
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// CPUs is how many CPUs this process may use: the lowest limit of its cgroup (version 2) and of
// those above it, but not more than Go uses (GOMAXPROCS, which also knows version 1). root is the
// root of the filesystem.
//
// Go rounds a limit up to whole CPUs, two at least, so that it says too little about a container
// with half a CPU.
func CPUs(root fs.FS) float64 {
	cpus := float64(runtime.GOMAXPROCS(0))
	own, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return cpus
	}
	path, found := "", false
	for line := range strings.Lines(string(own)) {
		if path, found = strings.CutPrefix(strings.TrimSpace(line), "0::/"); found {
			break
		}
	}
	if !found {
		return cpus
	}
	for dir := "sys/fs/cgroup/" + path; strings.HasPrefix(dir, "sys/fs/cgroup"); dir = dir[:strings.LastIndexByte(dir, '/')] {
		if text, err := fs.ReadFile(root, strings.TrimSuffix(dir, "/")+"/cpu.max"); err == nil {
			if limit, err := parse(string(text)); err == nil {
				cpus = min(cpus, limit)
			}
		}
	}
	return cpus
}

// parse reads cpu.max: "QUOTA PERIOD" in µs, the first "max" without a limit.
func parse(text string) (cpus float64, err error) {
	f := strings.Fields(text)
	if len(f) == 2 && f[0] == "max" {
		return math.Inf(1), nil
	}
	if len(f) == 2 {
		quota, err1 := strconv.ParseInt(f[0], 10, 64)
		period, err2 := strconv.ParseInt(f[1], 10, 64)
		if err1 == nil && err2 == nil && quota > 0 && period > 0 {
			return float64(quota) / float64(period), nil
		}
	}
	return 0, fmt.Errorf("cpu.max: %q is not QUOTA and PERIOD", text)
}

// Used is the CPU time of this process so far, of user and kernel; 0 if it cannot be read.
func Used() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
