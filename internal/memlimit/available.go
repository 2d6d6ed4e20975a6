package memlimit

import (
	"bytes"
	"io/fs"
	"math"
	"strconv"
)

// Available is what the kernel estimates (MemAvailable of /proc/meminfo) that programs of this
// machine can still have without swapping, in bytes. It is math.MaxInt64 where that is not known.
// The root is that of the filesystem that /proc is in.
func Available(root fs.FS) int64 {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return math.MaxInt64
	}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) != 3 || string(f[0]) != "MemAvailable:" || string(f[2]) != "kB" {
			continue
		}
		if kib, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil && kib >= 0 && kib <= math.MaxInt64>>10 {
			return kib << 10
		}
	}
	return math.MaxInt64
}
