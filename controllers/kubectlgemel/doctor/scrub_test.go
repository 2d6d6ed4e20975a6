package doctor

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func scrubbed(result string, differed, repaired int64) func(*Objects) {
	return func(o *Objects) {
		o.Pairs[0].Status.Scrub.LastResult = &v1alpha1.ScrubResult{Result: result, MismatchedRanges: differed, RepairedRanges: repaired, FinishedAt: at(time.Hour)}
	}
}

func due(d time.Duration) func(*Objects) {
	return func(o *Objects) { o.Pairs[0].Status.Scrub.NextAt = at(d) }
}

func suspend(o *Objects) {
	o.Clusters[0].Spec.Scrub.Suspend = true
	o.Pairs[0].Status.Scrub = &v1alpha1.ScrubStatus{}
}

func skipped(reason string) func(*Objects) {
	return func(o *Objects) {
		o.Pairs[0].Status.Scrub.Skipped = []v1alpha1.ScrubSkip{{Reason: reason, Ranges: 3, Bytes: 3 << 20}}
	}
}

var scrubCases = []trouble{
	{"it differs", "ScrubMismatched", Critical, "TargetPair/main-p0", scrubbed("Mismatched", 3, 1),
		map[string]func(*Objects){"gone": scrubbed("Clean", 0, 0)}, []string{"3 ranges of 1 MiB differed, 1 were repaired", "kubectl gemel scrub main-p0 --repair"}},
	{"it differed", "ScrubMismatched", Warning, "TargetPair/main-p0", scrubbed("Repaired", 3, 3),
		map[string]func(*Objects){"gone": scrubbed("Clean", 0, 0)}, []string{"3 were repaired"}},
	{"a disk", "ScrubSkipped", Warning, "TargetPair/main-p0", skipped("not readable"),
		map[string]func(*Objects){"gone": skipped("moved"), "a scrub is under way": func(o *Objects) { o.Pairs[0].Status.Scrub.Active = true },
			"nothing was skipped": func(o *Objects) { o.Pairs[0].Status.Scrub.Skipped[0].Ranges = 0 }}, []string{"3 ranges with 3.0 MiB skipped: not readable"}},
	{"the operator does not begin it", "ScrubOverdue", Warning, "TargetPair/main-p0", due(4 * day), map[string]func(*Objects){
		"gone": due(-day), "not for long": due(2 * day), "it runs": func(o *Objects) { o.Pairs[0].Status.Scrub.Active = true },
		"the turn of another pair": func(o *Objects) { o.Pairs[1].Status.Scrub.Active = true },
		"not in sync for long": func(o *Objects) {
			set(&o.Pairs[0].Status.Conditions, v1alpha1.ConditionInSync, true, "Ready", "", day)
		},
		"not in sync": func(o *Objects) {
			set(&o.Pairs[0].Status.Conditions, v1alpha1.ConditionInSync, false, "Degraded", "", day)
		},
	}, []string{"due 2026-11-21T12:00:00Z (4d)", "the last scrub was Clean", "kubectl gemel scrub main-p0 --wait"}},
	{"other pairs come first", "ScrubOverdue", Warning, "TargetPair/main-p0", func(o *Objects) { due(8 * day)(o); o.Pairs[1].Status.Scrub.Active = true },
		map[string]func(*Objects){"gone": due(-day)}, []string{"spec.scrub.parallel"}},
	{"for long", "ScrubSuspended", Note, "TargetPair/main-p0", suspend, map[string]func(*Objects){
		"gone":         func(o *Objects) { o.Clusters[0].Spec.Scrub.Suspend = false },
		"not for long": func(o *Objects) { o.Pairs[0].CreationTimestamp = ago(29 * day) },
		"a person":     scrubbed("Clean", 0, 0),
	}, []string{"spec.scrub.suspend of StorageCluster main"}},
}

func TestScrub(t *testing.T) { check(t, scrubCases) }
