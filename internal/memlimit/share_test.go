package memlimit

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestShareOfTheLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for _, c := range []struct{ limit, want int64 }{{math.MaxInt64, 5}, {800, 200}, {400, 100}, {396, 100}, {4, 100}} {
		debug.SetMemoryLimit(c.limit)
		if got := Share(4, 100, 5); got != c.want {
			t.Errorf("of %d: %d, want %d", c.limit, got, c.want)
		}
	}
}
