package main

import "testing"

// A node whose process is started again counts from zero; what the one before has moved was moved.
func TestCounterGoesOnOverProcesses(t *testing.T) {
	var c counter
	for i, x := range []struct {
		now, total int64
		again      bool
	}{{0, 0, false}, {150, 150, false}, {177, 177, false}, {0, 177, true}, {0, 177, false}, {5, 182, false}, {2, 184, true}} {
		if again := c.add(x.now); again != x.again || c.total != x.total {
			t.Errorf("reading %d, %d: again %v, total %d; want %v, %d", i, x.now, again, c.total, x.again, x.total)
		}
	}
}
