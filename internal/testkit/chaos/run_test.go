package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/lag"
)

func msec(n int64) int64 { return n * int64(time.Millisecond) }

// A pause belongs to the episode that it overlaps. One during which the machine starved is listed
// and does not count.
func TestPausesBelongToTheirEpisodes(t *testing.T) {
	rec := newRecorder()
	x := &runner{rig: &rig{rec: rec}, lag: lag.New(rec.begun, starved), report: &Report{PauseByEpisode: map[string]float64{}}}
	kill := Episode{Faults: []Fault{{Kind: Kill}}}
	p := &progress{}
	rec.ended(p, msec(100), msec(130), "write") // before
	rec.ended(p, msec(900), msec(1400), "write")
	rec.ended(p, msec(1100), msec(1200), "write")
	rec.ended(p, msec(1500), msec(1501), "write") // too short to be kept
	x.pauses(kill, msec(1000), msec(2000), true)
	r := x.report
	if r.PauseAfterKill != 500 || r.PauseMax != 500 || r.PauseFed != 500 || r.PauseQuiet != 30 || len(r.PausesOfKills) != 1 || r.PauseByEpisode["kill"] != 500 {
		t.Errorf("%+v", r)
	}
	rec.ended(p, msec(3000), msec(3800), "write")
	x.pauses(kill, msec(3000), msec(4000), false) // not in sync before: no measure for a kill
	if r.PauseAfterKill != 500 || r.PauseMax != 800 {
		t.Errorf("%+v", r)
	}
	x.lag.Scheduling(rec.begun.Add(5500*time.Millisecond), 300*time.Millisecond)
	rec.ended(p, msec(5100), msec(6000), "write")
	x.pauses(kill, msec(5000), msec(7000), true)
	if r.PauseAfterKill != 500 || r.PauseMax != 900 || r.PauseFed != 800 || len(r.Starved) != 1 || r.Starved[0].MS != 900 {
		t.Errorf("%+v", r)
	}
	both := Episode{Faults: []Fault{{Kind: Kill}, {Kind: Stop}}}
	rec.ended(p, msec(8000), msec(8700), "write")
	if x.pauses(both, msec(8000), msec(9000), true); r.PauseAfterKill != 500 || r.PauseByEpisode["kill + stop"] != 700 {
		t.Errorf("%+v", r)
	}
}

// Service is back when every worker has ended an operation that it began after the question.
func TestAllAreServed(t *testing.T) {
	r := newRecorder()
	a, b := r.worker(), r.worker()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r.ended(a, r.now(), r.now(), "read")
	if err := r.all(ctx); err == nil {
		t.Error("nobody was served since")
	}
	done := make(chan error, 1)
	long, cancel2 := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel2()
	go func() { done <- r.all(long) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			r.ended(a, r.now(), r.now(), "read")
			r.ended(b, r.now(), r.now(), "read")
		}
	}
}
