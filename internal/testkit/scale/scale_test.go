package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gemel-scale-")
	if err == nil {
		binary, err = harness.Build(context.Background(), dir, "./cmd/gemel-target")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(err, os.RemoveAll(dir)))
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// Bounds that hold on a busy machine. What is promised (1.2 times, 100 MiB) is measured by the
// benchmark; memory does not depend on how busy the machine is, so that bound is the promise
// itself.
const (
	few, many   = 10, 1000
	memoryBound = 100 << 20
	pauseFactor = 3
)

func TestManyLUNs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var r [2]Result
	for i, n := range []int{few, many} {
		var err error
		if r[i], err = Measure(ctx, Options{Dir: t.TempDir(), Binary: binary, LUNs: n, Events: 2, Log: t.Logf}); err != nil {
			t.Fatalf("%d LUNs: %v", n, err)
		}
		for _, w := range r[i].ArbiterWrites {
			if w != 1 {
				t.Errorf("%d LUNs: a fail-over wrote to the arbiter %d times, want once", n, w)
			}
		}
	}
	for i, b := range r[1].RSS {
		if b > memoryBound {
			t.Errorf("node %s holds %.1f MiB with %d LUNs", harness.Names[i], MiB(b), many)
		}
	}
	if a, b := slices.Max(r[0].Failover), slices.Min(r[1].Failover); b > pauseFactor*a {
		t.Errorf("fail-over took %v at least with %d LUNs and %v at most with %d", b, many, a, few)
	}
}
