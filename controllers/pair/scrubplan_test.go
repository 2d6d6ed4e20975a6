package pair

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/scrubs"
)

func TestInvalidScheduleNamesTheField(t *testing.T) {
	for text, want := range map[string]string{"0 2 * * 6": "", "*/5 1-3 1,15 jan-jun mon-fri": "", "0 25 * * *": "spec.scrub.schedule", "0 2 31 2 *": "never occurs", "0 2 * *": "spec.scrub.schedule", "": "spec.scrub.schedule"} {
		c := &v1alpha1.StorageCluster{Spec: v1alpha1.StorageClusterSpec{Scrub: v1alpha1.Scrub{Schedule: text}}}
		if _, err := schedule(c); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
		c.Spec.Scrub.Suspend = true
		if s, err := schedule(c); s != nil || err != nil {
			t.Errorf("suspended: %v %v", s, err)
		}
	}
}

func TestNextScrubFollowsPlanAndSchedule(t *testing.T) {
	const weekly = "0 2 * * 6"
	sched, err := schedule(&v1alpha1.StorageCluster{Spec: v1alpha1.StorageClusterSpec{Scrub: v1alpha1.Scrub{Schedule: weekly}}})
	if err != nil {
		t.Fatal(err)
	}
	day := func(d, h int) time.Time { return time.Date(2026, 11, d, h, 0, 0, 0, time.FixedZone("here", 3600)) } // the time zone of the operator does not matter
	planned := func(d int) *v1alpha1.ScrubStatus {
		x := metav1.NewTime(time.Date(2026, 11, d, 2, 0, 0, 0, time.UTC))
		return &v1alpha1.ScrubStatus{NextAt: &x, Schedule: weekly}
	}
	scrub := func(start time.Time, f ...func(*scrubs.Report)) *scrubs.Report {
		r := &scrubs.Report{ID: "x", Whole: true, Scheduled: true, Started: start, Finished: start.Add(time.Hour)}
		for _, g := range f {
			g(r)
		}
		return r
	}
	person := func(r *scrubs.Report) { r.Scheduled = false }
	some := func(r *scrubs.Report) { r.Whole = false }
	active := func(r *scrubs.Report) { r.Active = true }
	stopped := func(r *scrubs.Report) { r.Reason = "the peer is not a member any more" }
	known := func(s *v1alpha1.ScrubStatus) *v1alpha1.ScrubStatus {
		s.LastResult = &v1alpha1.ScrubResult{ID: "x"}
		return s
	}
	other := planned(14)
	other.Schedule = "0 3 * * *"
	for name, x := range map[string]struct {
		before *v1alpha1.ScrubStatus
		newest *scrubs.Report
		now    time.Time
		want   time.Time
	}{
		"the first plan is not due at once":               {nil, nil, day(11, 12), time.Date(2026, 11, 14, 2, 0, 0, 0, time.UTC)},
		"a plan stays":                                    {planned(14), nil, day(11, 12), planned(14).NextAt.Time},
		"a missed scrub is due":                           {planned(14), nil, day(25, 12), planned(14).NextAt.Time},
		"once, not for each missed week":                  {planned(7), scrub(day(25, 12), active), day(25, 12), time.Date(2026, 11, 28, 2, 0, 0, 0, time.UTC)},
		"a scrub that has ended meanwhile counts":         {planned(7), scrub(day(25, 12)), day(25, 14), time.Date(2026, 11, 28, 2, 0, 0, 0, time.UTC)},
		"a manual scrub counts":                           {planned(14), scrub(day(14, 4), person), day(14, 12), time.Date(2026, 11, 21, 2, 0, 0, 0, time.UTC)},
		"not of a LUN":                                    {planned(14), scrub(day(14, 4), person, some), day(14, 12), planned(14).NextAt.Time},
		"an earlier scrub does not count":                 {planned(14), scrub(day(13, 4)), day(14, 12), planned(14).NextAt.Time},
		"another schedule starts from now":                {other, nil, day(25, 12), time.Date(2026, 11, 28, 2, 0, 0, 0, time.UTC)},
		"a scrub that ended early is due again":           {planned(21), scrub(day(14, 4), stopped), day(14, 12), day(14, 5).Add(retryAfter)},
		"but once":                                        {known(planned(21)), scrub(day(14, 4), stopped), day(14, 12), planned(21).NextAt.Time},
		"a manual scrub that ended early is not repeated": {planned(21), scrub(day(14, 4), stopped, person), day(14, 12), planned(21).NextAt.Time},
	} {
		if got := nextScrub(x.before, weekly, sched, x.newest, x.now); got == nil || !got.Time.Equal(x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
	if got := nextScrub(planned(14), weekly, nil, nil, day(25, 1)); got != nil {
		t.Errorf("suspended: %v", got)
	}
}
