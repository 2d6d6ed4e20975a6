package userspace

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Resources of one attachment. An idle holder has 10 MiB of memory and ten threads, and up to 6 MiB
// more with eight sessions to each portal; under load it also has the data in flight. Mounts are
// those of the FUSE file, the staged filesystem and pods.
const (
	memoryEach  = 32 << 20 // bytes
	threadsEach = 24
	mountsEach  = 4
	// loopMinors is the maximum number of loop devices of a kernel (20 bits). max_loop is no limit:
	// it is the number created at boot.
	loopMinors = 1 << 20
)

// share: attachments may use 1/share of the machine.
const share = 2

// Limit returns how many attachments this machine can hold, and the limiting resource.
func Limit() (n int64, by string, err error) { return limit("/proc") }

func limit(proc string) (n int64, by string, err error) {
	memory, err := memTotal(filepath.Join(proc, "meminfo"))
	threads, terr := readNumber(filepath.Join(proc, "sys/kernel/pid_max"))
	mounts, merr := readNumber(filepath.Join(proc, "sys/fs/mount-max"))
	if err := errors.Join(err, terr, merr); err != nil {
		return 0, "", fmt.Errorf("userspace attach: limits of this machine: %w", err)
	}
	n, by = loopMinors, "loop devices"
	for what, most := range map[string]int64{"memory": memory / share / memoryEach, "threads (kernel.pid_max)": threads / share / threadsEach,
		"mounts (fs.mount-max)": mounts / share / mountsEach} {
		if most < n {
			n, by = most, what
		}
	}
	return max(n, 1), by, nil
}

func readNumber(path string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// memTotal reads MemTotal of meminfo(5), in bytes.
func memTotal(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s: no MemTotal", path)
}
