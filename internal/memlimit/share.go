package memlimit

import (
	"math"
	"runtime/debug"
)

// Share is one part in n of Go's memory limit as it is now, in bytes, and least if that is more.
// Where Go has no limit it is without.
func Share(n, least, without int64) int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return without
	}
	return max(limit/n, least)
}
