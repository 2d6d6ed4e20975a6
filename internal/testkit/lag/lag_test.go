package lag

import (
	"context"
	"testing"
	"time"
)

func TestProbeMeasuresLag(t *testing.T) {
	const starved = 100 * time.Millisecond
	begun := time.Now()
	p := New(begun, starved)
	p.Scheduling(begun.Add(time.Second), starved/2)
	p.Disk(begun.Add(2*time.Second), 2*starved)
	if late, disk := p.Worst(); late != starved/2 || disk != 2*starved {
		t.Error(late, disk)
	}
	if p.In(0, 1900*time.Millisecond) || !p.In(1900*time.Millisecond, 2100*time.Millisecond) || p.In(2300*time.Millisecond, 9*time.Second) {
		t.Errorf("%+v", p)
	}
	p.Scheduling(begun.Add(2100*time.Millisecond), 3*starved)
	if got := p.Longest(2150*time.Millisecond, 3*time.Second); got != 3*starved {
		t.Error(got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if p.Run(ctx); ctx.Err() == nil {
		t.Error("it ended before its context")
	}
	ctx, cancel = context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	p = New(begun, starved)
	if err := p.Sync(ctx, t.TempDir()); err != nil {
		t.Error(err)
	}
	if _, disk := p.Worst(); disk == 0 {
		t.Error("nothing was measured")
	}
}
