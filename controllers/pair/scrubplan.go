package pair

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/scrubs"
)

// retryAfter is when a scheduled scrub that ended early is started again: the pair was not in sync,
// and may be out of sync again.
const retryAfter = 10 * time.Minute

// schedule of a cluster's scrubs, nil while it is suspended.
func schedule(c *v1alpha1.StorageCluster) (cron.Schedule, error) {
	x := &c.Spec.Scrub
	if x.Suspend {
		return nil, nil
	}
	s, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(x.Schedule)
	if err != nil {
		return nil, fmt.Errorf("spec.scrub.schedule: %q: %w; write minute, hour, day of the month, month and day of the week, as in \"0 2 * * 6\"", x.Schedule, err)
	}
	if s.Next(time.Now().UTC()).IsZero() {
		return nil, fmt.Errorf("spec.scrub.schedule: %q never occurs, because there is no such day; write another schedule, or set spec.scrub.suspend", x.Schedule)
	}
	return s, nil
}

// nextScrub is when the next scrub is due, from the plan in the status, the schedule and the newest
// scrub of the pair (nil if there was none).
//
// If the plan is lost or is of another schedule, it starts from now. Any number of missed times
// makes one scrub due. A full scrub that started when one was due counts as that scrub, no matter
// who started it: an operator that crashed between starting a scrub and writing the status does not
// start another one.
func nextScrub(before *v1alpha1.ScrubStatus, text string, s cron.Schedule, newest *scrubs.Report, now time.Time) *metav1.Time {
	if s == nil {
		return nil
	}
	from := func(t time.Time) *metav1.Time { x := metav1.NewTime(s.Next(t.UTC())); return &x }
	if before == nil || before.NextAt == nil || before.Schedule != text {
		return from(now)
	}
	due := before.NextAt
	if newest == nil {
		return due
	}
	switch {
	case newest.Active && newest.Whole && !newest.Started.Before(due.Time), !newest.Active && newest.Whole && !newest.Started.Before(due.Time) && newest.Result() != scrubs.Stopped:
		return from(later(newest.Started, now))
	case newest.Scheduled && newest.Result() == scrubs.Stopped && (before.LastResult == nil || before.LastResult.ID != newest.ID):
		if retry := metav1.NewTime(newest.Finished.Add(retryAfter).Truncate(time.Second)); retry.Before(due) || !newest.Started.Before(due.Time) {
			return &retry
		}
	}
	return due
}

func later(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}
