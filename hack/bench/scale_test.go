package main

import (
	"testing"
	"time"
)

func TestScaleNumbers(t *testing.T) {
	r := number("x", "MiB", pausesMS([]time.Duration{2 * time.Millisecond, 500 * time.Microsecond}))
	if r.Gemel != 2 || r.Unit != "MiB" || r.GemelSpread.Min != 0.5 || r.Peer != nil || r.Ratio != nil || r.Rounds != 2 {
		t.Errorf("%+v", r)
	}
	if v := counts([]uint64{1, 3}); len(v) != 2 || v[1] != 3 {
		t.Errorf("%v", v)
	}
}
