package scrubs

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

var start = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func at(s int) *timestamppb.Timestamp {
	return timestamppb.New(start.Add(time.Duration(s) * time.Second))
}

func TestOfSumsUpShares(t *testing.T) {
	if _, ok := Of(nil, nil); ok {
		t.Fatal("there is none")
	}
	old := &targetv1.Scrub{Id: "1", Node: "a", TotalBytes: 1 << 30, DoneBytes: 1 << 30, Started: at(0), Finished: at(9)}
	a := &targetv1.Scrub{Id: "2", Node: "a", TotalBytes: 3 << 20, DoneBytes: 2 << 20, SkippedBytes: 1 << 20, Started: at(100), Finished: at(150),
		Skipped: []*targetv1.ScrubSkip{{Reason: "moved", Ranges: 1, Bytes: 1 << 20}}, MismatchedRanges: 2, RepairedRanges: 1, Origin: targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE}
	b := &targetv1.Scrub{Id: "2", Node: "b", Active: true, TotalBytes: 5 << 20, DoneBytes: 1 << 20, SkippedBytes: 1 << 20, Started: at(99), ExpectedEnd: at(400),
		Skipped: []*targetv1.ScrubSkip{{Reason: "moved", Ranges: 1, Bytes: 1 << 20}}, Origin: targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE}
	r, ok := Of(a, a, b, old)
	if !ok || !r.Active || r.ID != "2" || r.TotalBytes != 8<<20 || r.DoneBytes != 3<<20 || r.SkippedBytes != 2<<20 || len(r.Skipped) != 1 || r.Skipped[0] != (Skip{"moved", 2, 2 << 20}) ||
		!r.Started.Equal(at(99).AsTime()) || !r.Finished.IsZero() || r.Result() != Running || len(r.Shares) != 2 || !r.Scheduled {
		t.Fatalf("%+v", r)
	}
	if got, want := r.Progress(at(340).AsTime()), "62%, 3.0 MiB of 8.0 MiB compared, 1m0s left, 2 ranges differed, 1 repaired, 2.0 MiB skipped (moved)"; got != want {
		t.Errorf("%q", got)
	}
	b.Active, b.Finished, b.ExpectedEnd = false, at(170), nil
	if r, _ = Of(old, a, b); r.Active || !r.Finished.Equal(at(170).AsTime()) || r.Result() != Mismatched {
		t.Fatalf("%+v", r)
	}
	// Releases that tell no id.
	r, _ = Of(&targetv1.Scrub{TotalBytes: 2, DoneBytes: 2, Started: at(0), Finished: at(2)}, &targetv1.Scrub{TotalBytes: 3, DoneBytes: 3, Started: at(1), Finished: at(2)})
	if r.TotalBytes != 5 || r.Result() != Clean {
		t.Fatalf("%+v", r)
	}
}

func TestResultOfAScrub(t *testing.T) {
	skip := func(why string) []*targetv1.ScrubSkip {
		return []*targetv1.ScrubSkip{{Reason: why, Ranges: 1, Bytes: 1}}
	}
	for want, x := range map[Result]*targetv1.Scrub{
		Running:    {Active: true, MismatchedRanges: 1},
		Mismatched: {MismatchedRanges: 2, RepairedRanges: 1, Reason: "the peer is not a member any more", Skipped: skip("moved")},
		Stopped:    {Reason: "the peer is not a member any more", Skipped: skip("not in sync")},
		Incomplete: {Skipped: skip("moved"), MismatchedRanges: 1, RepairedRanges: 1},
		Repaired:   {MismatchedRanges: 1, RepairedRanges: 1},
		Clean:      {Skipped: skip("deleted")},
	} {
		if r, _ := Of(x); r.Result() != want {
			t.Errorf("%v is %v, want %v", x, r.Result(), want)
		}
	}
}
