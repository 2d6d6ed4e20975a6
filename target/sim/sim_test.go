package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// fixed are the seeds that gate: a spread, and every seed that ever failed.
func fixed() (seeds []uint64) {
	for s := uint64(1); s <= 60; s++ {
		seeds = append(seeds, s)
	}
	return append(seeds, failedOnce...)
}

// failedOnce found a bug when they were fresh.
var failedOnce = []uint64{15174107334329716945}

// TestFixedSeeds plays the gate's histories. SIM_SEED=n plays one and prints it.
func TestFixedSeeds(t *testing.T) {
	if v := os.Getenv("SIM_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("SIM_SEED=%q is not a number", v)
		}
		r := Run(Config{Seed: n, Trace: true})
		fmt.Println(r.String())
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return
	}
	seeds := fixed()
	if v := os.Getenv("SIM_FRESH"); v != "" { // that many seeds nobody has seen
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("SIM_FRESH=%q is not a number", v)
		}
		seeds = seeds[:0]
		for range n {
			seeds = append(seeds, rand.Uint64())
		}
	}
	total := Result{Faults: map[string]int{}}
	for _, seed := range seeds {
		r := Run(Config{Seed: seed})
		if r.Err != nil {
			t.Errorf("%v\nreplay: SIM_SEED=%d go test ./target/sim -run TestFixedSeeds -v", r.Err, seed)
		}
		if r.Events < 1000 || r.Operations < 100 {
			t.Errorf("seed %d is too thin: %d events, %d operations", seed, r.Events, r.Operations)
		}
		total.Events += r.Events
		total.Operations += r.Operations
		for k, n := range r.Faults {
			total.Faults[k] += n
		}
		addStats(&total.Stats, &r.Stats)
	}
	t.Logf("%d events, %d operations, faults %v, %+v", total.Events, total.Operations, total.Faults, total.Stats)
	st := total.Stats
	for name, n := range map[string]uint64{"exclude": st.Excludes, "readmit": st.Readmits, "forward": st.Forwarded,
		"path switch": st.PathSwitches, "transfer": st.Transfers, "lease lapse": st.LeaseLapses, "stale message": st.StaleMessages,
		"held": st.Held, "aged": st.Aged, "repair": st.Repaired} {
		if n == 0 {
			t.Errorf("no history reached: %s", name)
		}
	}
}
