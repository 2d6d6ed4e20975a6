package logicalunit

import (
	"testing"
	"time"
)

func TestLanesKeepASlowPairFromTakingAll(t *testing.T) {
	var l lanes
	now := time.Unix(1000, 0)
	var leave []func()
	for range 3 * maxSlow { // a burst at a pair that answers
		f, ok := l.enter("slow", now)
		if !ok {
			t.Fatal("a pair that answers has to wait")
		}
		leave = append(leave, f)
	}
	now = now.Add(slowAfter + time.Millisecond)
	if _, ok := l.enter("slow", now); ok {
		t.Error("a pair that is slow gets more")
	}
	if f, ok := l.enter("other", now); !ok {
		t.Error("another pair has to wait")
	} else {
		f()
	}
	if f, ok := l.enter("", now); !ok {
		t.Error("a LUN without a place has to wait")
	} else {
		f()
	}
	for _, f := range leave[maxSlow-1:] {
		f()
	}
	if f, ok := l.enter("slow", now); !ok {
		t.Error("it answers again, and has to wait")
	} else {
		f()
	}
	for _, f := range leave[:maxSlow-1] {
		f()
	}
	if len(l.begun) != 0 {
		t.Errorf("%v", l.begun)
	}
}
