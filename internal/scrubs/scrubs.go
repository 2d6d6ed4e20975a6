// Package scrubs puts the shares of a scrub together, which each node of a pair reports separately.
package scrubs

import (
	"fmt"
	"strings"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/human"
)

// Report is one scrub of a pair. TotalBytes is the sum of DoneBytes, SkippedBytes and what is still
// to do.
type Report struct {
	ID           string // empty: of a release that knows none
	Active       bool
	Scheduled    bool // else a person began it
	Repair       bool
	Whole        bool   // of everything
	Rate         uint64 // bytes a second of each node at most
	Started      time.Time
	Finished     time.Time // of the node that was last; zero while active
	ExpectedEnd  time.Time // zero: it cannot be said
	TotalBytes   uint64
	DoneBytes    uint64 // compared
	SkippedBytes uint64
	Mismatched   uint64 // ranges
	Repaired     uint64 // ranges
	Skipped      []Skip
	Reason       string // why it ended early
	Shares       []*targetv1.Scrub
}

// Skip is what was not compared, for one reason.
type Skip struct {
	Reason        string
	Ranges, Bytes uint64
}

// Result of a scrub.
type Result string

// Results.
const (
	Running    Result = "Running"
	Clean      Result = "Clean"      // everything was compared and is alike
	Repaired   Result = "Repaired"   // what differed was written again
	Mismatched Result = "Mismatched" // something differs still
	Incomplete Result = "Incomplete" // nothing differs in what was compared; something was skipped
	Stopped    Result = "Stopped"    // it ended early, and nothing differs in what was compared
)

// deleted is the reason of what there is not any more: nothing of it is left to compare.
const deleted = "deleted"

// Of puts together the shares of the newest scrub among those given: one that is under way before
// one that has ended. False: there is none.
func Of(shares ...*targetv1.Scrub) (r Report, ok bool) {
	var newest *targetv1.Scrub
	for _, x := range shares {
		if x != nil && (newest == nil || x.Active && !newest.Active || x.Active == newest.Active && x.Started.AsTime().After(newest.Started.AsTime())) {
			newest = x
		}
	}
	if newest == nil {
		return r, false
	}
	r = Report{ID: newest.Id, Scheduled: newest.Origin == targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE, Repair: newest.Repair, Whole: newest.Whole, Rate: newest.BytesPerSecond}
	seen := map[string]bool{}
	for _, x := range shares {
		if x == nil || x.Id != newest.Id || x.Node != "" && seen[x.Node] {
			continue
		}
		seen[x.Node] = true
		r.add(x)
	}
	if r.Active {
		r.Finished = time.Time{}
	}
	return r, true
}

func (r *Report) add(x *targetv1.Scrub) {
	r.Shares = append(r.Shares, x)
	r.Active = r.Active || x.Active
	if at := x.Started.AsTime(); r.Started.IsZero() || at.Before(r.Started) {
		r.Started = at
	}
	if x.Finished != nil && x.Finished.AsTime().After(r.Finished) {
		r.Finished = x.Finished.AsTime()
	}
	if x.ExpectedEnd != nil && x.ExpectedEnd.AsTime().After(r.ExpectedEnd) {
		r.ExpectedEnd = x.ExpectedEnd.AsTime()
	}
	r.TotalBytes, r.DoneBytes, r.SkippedBytes = r.TotalBytes+x.TotalBytes, r.DoneBytes+x.DoneBytes, r.SkippedBytes+x.SkippedBytes
	r.Mismatched, r.Repaired = r.Mismatched+x.MismatchedRanges, r.Repaired+x.RepairedRanges
	for _, s := range x.Skipped {
		r.skip(s)
	}
	if x.Reason != "" && !strings.Contains(r.Reason, x.Reason) {
		r.Reason = strings.TrimPrefix(r.Reason+"; "+x.Reason, "; ")
	}
}

func (r *Report) skip(s *targetv1.ScrubSkip) {
	for i := range r.Skipped {
		if k := &r.Skipped[i]; k.Reason == s.Reason {
			k.Ranges, k.Bytes = k.Ranges+s.Ranges, k.Bytes+s.Bytes
			return
		}
	}
	r.Skipped = append(r.Skipped, Skip{s.Reason, s.Ranges, s.Bytes})
}

// Result of it, so far.
func (r *Report) Result() Result {
	unseen := uint64(0)
	for _, s := range r.Skipped {
		if s.Reason != deleted {
			unseen += s.Ranges
		}
	}
	switch {
	case r.Active:
		return Running
	case r.Mismatched > r.Repaired:
		return Mismatched
	case r.Reason != "":
		return Stopped
	case unseen > 0:
		return Incomplete
	case r.Repaired > 0:
		return Repaired
	}
	return Clean
}

// Left is the time that it takes still; false when that cannot be said.
func (r *Report) Left(now time.Time) (time.Duration, bool) {
	if !r.Active || r.ExpectedEnd.IsZero() {
		return 0, false
	}
	return max(0, r.ExpectedEnd.Sub(now)), true
}

// Percent of it that has been compared or skipped.
func (r *Report) Percent() int {
	if r.TotalBytes == 0 {
		return 100
	}
	return int(100 * float64(r.DoneBytes+r.SkippedBytes) / float64(r.TotalBytes))
}

// Progress is how far it is, or how it has ended, in one line.
func (r *Report) Progress(now time.Time) string {
	var b strings.Builder
	if r.Active {
		fmt.Fprintf(&b, "%d%%, ", r.Percent())
	}
	fmt.Fprintf(&b, "%s of %s compared", human.Size(r.DoneBytes), human.Size(r.TotalBytes))
	if left, ok := r.Left(now); ok {
		fmt.Fprintf(&b, ", %v left", left.Round(time.Second))
	}
	fmt.Fprintf(&b, ", %d ranges differed, %d repaired", r.Mismatched, r.Repaired)
	for _, s := range r.Skipped {
		fmt.Fprintf(&b, ", %s skipped (%s)", human.Size(s.Bytes), s.Reason)
	}
	if r.Reason != "" {
		fmt.Fprintf(&b, "; it ended early: %s", r.Reason)
	}
	return b.String()
}

// Who began it, for people.
func (r *Report) Who() string {
	if r.Scheduled {
		return "the schedule"
	}
	return "a person"
}
