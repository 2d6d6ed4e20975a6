package initiator

import (
	"fmt"
	"testing"

	"github.com/gemel-storage/gemel/internal/alua"
)

func TestRoutePrefersOptimizedPaths(t *testing.T) {
	up := func(s alua.State) pathView { return pathView{up: true, state: s} }
	blocked := pathView{up: true, blocked: true, state: alua.Optimized}
	down := pathView{state: alua.Optimized}
	for _, v := range []struct {
		name    string
		views   []pathView
		current int
		want    int
	}{
		{"optimized wins", []pathView{up(alua.NonOptimized), up(alua.Optimized)}, 0, 1},
		{"first of equals", []pathView{up(alua.Optimized), up(alua.Optimized)}, -1, 0},
		{"stay among equals", []pathView{up(alua.Optimized), up(alua.Optimized)}, 1, 1},
		{"stay while both are non-optimized", []pathView{up(alua.NonOptimized), up(alua.NonOptimized)}, 1, 1},
		{"down is not used", []pathView{down, up(alua.NonOptimized)}, 0, 1},
		{"blocked is not used", []pathView{blocked, up(alua.NonOptimized)}, 0, 1},
		{"transitioning as a last resort", []pathView{blocked, up(alua.Transitioning)}, 0, 1},
		{"non-optimized before transitioning", []pathView{up(alua.Transitioning), up(alua.NonOptimized)}, 0, 1},
		{"standby and unavailable never", []pathView{up(alua.Standby), up(alua.Unavailable)}, 0, -1},
		{"nothing", nil, -1, -1},
		{"back from none", []pathView{down, up(alua.Optimized)}, -1, 1},
	} {
		if got := route(v.views, v.current); got != v.want {
			t.Errorf("%s: path %d, want %d", v.name, got, v.want)
		}
	}
}

func TestDecideByStatusAndSense(t *testing.T) {
	check := func(key, asc, ascq byte) outcome {
		return outcome{status: StatusCheckCondition, sense: Sense{Key: key, ASC: asc, ASCQ: ascq}}
	}
	for _, v := range []struct {
		name string
		o    outcome
		want verdict
	}{
		{"good", outcome{}, verdict{act: actDone}},
		{"recovered", check(1, 0x17, 0), verdict{act: actDone}},
		{"session lost", outcome{err: fmt.Errorf("x: %w", ErrSessionLost)}, verdict{act: actElsewhere, note: noteLost}},
		{"timed out", outcome{err: ErrTimeout}, verdict{act: actLimited}},
		{"busy", outcome{status: StatusBusy}, verdict{act: actLater}},
		{"task set full", outcome{status: StatusTaskSetFull}, verdict{act: actLater}},
		{"task aborted", outcome{status: StatusTaskAborted}, verdict{act: actLimited}},
		{"reservation conflict", outcome{status: StatusReservationConflict}, verdict{act: actFail}},
		{"power on", check(6, 0x29, 0), verdict{act: actRetry, note: noteAttention}},
		{"states changed", check(6, 0x2a, 6), verdict{act: actRetry, note: noteALUA}},
		{"transition failed", check(6, 0x2a, 7), verdict{act: actRetry, note: noteALUA}},
		{"capacity", check(6, 0x2a, 9), verdict{act: actRetry, note: noteCapacity}},
		{"inventory", check(6, 0x3f, 0x0e), verdict{act: actRetry, note: noteInventory}},
		{"transitioning", check(2, 4, 0x0a), verdict{actElsewhere, noteNotServing, alua.Transitioning}},
		{"standby", check(2, 4, 0x0b), verdict{actElsewhere, noteNotServing, alua.Standby}},
		{"unavailable", check(2, 4, 0x0c), verdict{actElsewhere, noteNotServing, alua.Unavailable}},
		{"becoming ready", check(2, 4, 1), verdict{act: actLater}},
		{"no medium", check(2, 0x3a, 0), verdict{act: actFail}},
		{"no unit", check(5, 0x25, 0), verdict{act: actElsewhere, note: noteNoUnit}},
		{"out of range", check(5, 0x21, 0), verdict{act: actFail}},
		{"medium error", check(3, 0x11, 0), verdict{act: actFail}},
		{"no space", check(7, 0x27, 7), verdict{act: actFail}},
		{"miscompare", check(0xe, 0x1d, 0), verdict{act: actFail}},
		{"aborted", check(0xb, 0x47, 3), verdict{act: actLimited}},
		{"hardware", check(4, 0x44, 0), verdict{act: actFail}},
	} {
		if got := decide(v.o); got != v.want {
			t.Errorf("%s: %+v, want %+v", v.name, got, v.want)
		}
	}
}
