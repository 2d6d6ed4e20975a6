package initiator

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/internal/alua"
)

func TestRoutePrefersOptimizedPaths(t *testing.T) {
	up := func(s alua.State) pathView { return pathView{up: true, state: s} }
	at := func(portal int, v pathView) pathView { v.portal = portal; return v }
	blocked := pathView{up: true, blocked: true, state: alua.Optimized}
	down := pathView{state: alua.Optimized}
	// One session to each portal, unless told otherwise.
	single := func(views ...pathView) []pathView {
		for i := range views {
			views[i].portal = i
		}
		return views
	}
	for _, v := range []struct {
		name    string
		views   []pathView
		current int
		want    []int
	}{
		{"optimized wins", single(up(alua.NonOptimized), up(alua.Optimized)), 0, []int{1}},
		{"first of equals", single(up(alua.Optimized), up(alua.Optimized)), -1, []int{0}},
		{"stay among equals", single(up(alua.Optimized), up(alua.Optimized)), 1, []int{1}},
		{"stay while both are non-optimized", single(up(alua.NonOptimized), up(alua.NonOptimized)), 1, []int{1}},
		{"down is not used", single(down, up(alua.NonOptimized)), 0, []int{1}},
		{"blocked is not used", single(blocked, up(alua.NonOptimized)), 0, []int{1}},
		{"transitioning as a last resort", single(blocked, up(alua.Transitioning)), 0, []int{1}},
		{"non-optimized before transitioning", single(up(alua.Transitioning), up(alua.NonOptimized)), 0, []int{1}},
		{"standby and unavailable never", single(up(alua.Standby), up(alua.Unavailable)), 0, nil},
		{"nothing", nil, -1, nil},
		{"back from none", single(down, up(alua.Optimized)), -1, []int{1}},
		{"all sessions to one portal", []pathView{at(0, up(alua.Optimized)), at(0, up(alua.Optimized)),
			at(1, up(alua.NonOptimized)), at(1, up(alua.NonOptimized))}, -1, []int{0, 1}},
		{"the current portal's, of equals", []pathView{at(0, up(alua.Optimized)), at(0, up(alua.Optimized)),
			at(1, up(alua.Optimized)), at(1, up(alua.Optimized))}, 1, []int{2, 3}},
		{"one session is enough to stay", []pathView{at(0, up(alua.Optimized)), at(0, up(alua.Optimized)),
			at(1, down), at(1, up(alua.Optimized))}, 1, []int{3}},
		{"not the sessions that are worse", []pathView{at(0, up(alua.NonOptimized)), at(0, up(alua.Optimized)),
			at(0, blocked), at(1, up(alua.NonOptimized))}, 0, []int{1}},
		{"the other portal when none is left", []pathView{at(0, down), at(0, blocked),
			at(1, up(alua.NonOptimized)), at(1, up(alua.NonOptimized))}, 0, []int{2, 3}},
		{"back with the first that is better", []pathView{at(0, down), at(0, up(alua.Optimized)),
			at(1, up(alua.NonOptimized)), at(1, up(alua.NonOptimized))}, 1, []int{1}},
	} {
		if got := route(v.views, v.current); !slices.Equal(got, v.want) {
			t.Errorf("%s: paths %v, want %v", v.name, got, v.want)
		}
	}
}

func TestChooseStaysUnlessAnotherSessionIsClearlyFreer(t *testing.T) {
	for _, v := range []struct {
		name  string
		loads []int32
		last  int32
		want  int32
	}{
		{"idle: the last", []int32{0, 0, 0, 0}, 2, 2},
		{"one in flight: stay", []int32{0, 1, 0, 0}, 1, 1},
		{"two in flight: the lowest of the free", []int32{0, 2, 0, 0}, 1, 0},
		{"the least", []int32{5, 4, 3, 9}, 3, 2},
		{"about equal: stay", []int32{31, 32, 31, 32}, 1, 1},
		{"the last has the least", []int32{7, 7, 1, 7}, 2, 2},
		{"two sessions", []int32{3, 1}, 0, 1},
	} {
		if got := choose(v.loads, v.last); got != v.want {
			t.Errorf("%s: session %d, want %d", v.name, got, v.want)
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
		{"until an administrator has done something", check(2, 4, 3), verdict{act: actLater}},
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
