package doctor

import (
	"testing"
	"time"
)

var resyncCases = []trouble{
	{"no progress", "ResyncStuck", Critical, "TargetPair/main-p0", func(o *Objects) {
		pairIs(o, 5*time.Hour, true, false, "node a is Resyncing", percent(40), phase("Joining", ""))
		o.Pairs[0].Status.Free = quantity("2040Gi")
		writtenBefore(&o.Pairs[0].ObjectMeta, "status", 61*time.Minute)
	}, map[string]func(*Objects){
		"gone":     back,
		"progress": func(o *Objects) { writtenBefore(&o.Pairs[0].ObjectMeta, "status", 59*time.Minute) },
		"one percent is much": func(o *Objects) {
			o.Pairs[0].Status.Capacity, o.Pairs[0].Status.Free = quantity("100Ti"), quantity("1Ti")
		},
		"it is unknown when the status was written": func(o *Objects) { o.Pairs[0].ManagedFields = nil },
	}, []string{"the progress is 40% since 2026-11-25T10:59:00Z", "kubectl logs -n gemel-system gemel-main-p0-a-0", "disk of node b"}},
}

func TestResync(t *testing.T) { check(t, resyncCases) }
