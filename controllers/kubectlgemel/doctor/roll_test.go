package doctor

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func upToDate(reason, message string, since time.Duration) func(*Objects) {
	return func(o *Objects) {
		set(&o.Pairs[0].Status.Conditions, v1alpha1.ConditionUpToDate, false, reason, message, since)
		set(&o.Clusters[0].Status.Conditions, v1alpha1.ConditionUpToDate, false, reason, "main-p0: "+message, since)
	}
}

func images(since time.Duration, a, b string, ok bool) func(*Objects) {
	return func(o *Objects) {
		o.Pairs[0].Status.Nodes[0].Image, o.Pairs[0].Status.Nodes[1].Image = a, b
		set(&o.Pairs[0].Status.Conditions, v1alpha1.ConditionUpToDate, ok, "Rolling", "node b will be restarted", since)
	}
}

var rollCases = []trouble{
	{"no volume for a pool", "PairNotUpToDate", Warning, "TargetPair/main-p0", upToDate("NoStorage", "spec.pools[fast]: worker worker-1 has no free volume", 6*time.Minute),
		map[string]func(*Objects){"gone": back, "not for long": upToDate("NoStorage", "no free volume", 4*time.Minute)}, []string{"no free volume"}},
	{"a roll that does not end", "PairNotUpToDate", Warning, "TargetPair/main-p0", upToDate("Rolling", "node b cannot be drained yet", 31*time.Minute),
		map[string]func(*Objects){"gone": back, "a roll": upToDate("Rolling", "node b is being restarted", 29*time.Minute), "it waits for a copy": func(o *Objects) {
			pairIs(o, time.Hour, true, false, "node b", phase("Alone", ""), phase("Unknown", ""))
		}}, []string{"cannot be drained"}},
	{"members that do not become empty", "PairNotUpToDate", Warning, "TargetPair/main-p0", upToDate("Members", "node a moves data away from member more-0", 121*time.Minute),
		map[string]func(*Objects){"gone": back, "a drain": upToDate("Members", "node a moves data away from member more-0", 119*time.Minute)}, []string{"moves data away"}},
	{"the Lease is gone", "RecordMissing", Critical, "TargetPair/main-p0", upToDate("Missing", "Lease gemel-system/gemel-main-p0, the record of the pair, does not exist", time.Hour),
		map[string]func(*Objects){"gone": back, "not for long": upToDate("Missing", "Lease", time.Minute)}, []string{"cannot take over", "Lease gemel-system/gemel-main-p0"}},
	{"outside of a roll", "ImagesDiffer", Warning, "TargetPair/main-p0", images(time.Hour, "gemel:1", "gemel:2", true),
		map[string]func(*Objects){"gone": images(time.Hour, "gemel:2", "gemel:2", true), "a roll": images(119*time.Minute, "gemel:1", "gemel:2", false), "just now": images(4*time.Minute, "gemel:1", "gemel:2", true),
			"node a has no pod": images(time.Hour, "", "gemel:2", true), "node b has no pod": images(time.Hour, "gemel:1", "", true)}, []string{"node a has gemel:1, node b has gemel:2"}},
	{"a field that is left", "ReplaceLeft", Note, "TargetPair/main-p0", func(o *Objects) {
		o.Pairs[0].Spec.Replace, o.Pairs[0].Status.Replaced = &v1alpha1.Replace{Node: "b"}, &v1alpha1.Replace{Node: "b"}
	}, map[string]func(*Objects){
		"gone":        func(o *Objects) { o.Pairs[0].Spec.Replace = nil },
		"another one": func(o *Objects) { o.Pairs[0].Spec.Replace.Node = "a" },
		"not in sync for long": func(o *Objects) {
			set(&o.Pairs[0].Status.Conditions, v1alpha1.ConditionInSync, true, "Ready", "", 59*time.Minute)
		},
	}, []string{`"path":"/spec/replace"`}},
}

func TestRoll(t *testing.T) { check(t, rollCases) }

// A roll whose images differ for long is an upgrade that has not ended.
func TestUpgradeThatDoesNotEnd(t *testing.T) {
	o := healthy(6)
	images(3*time.Hour, "gemel:1", "gemel:2", false)(o)
	var rules []string
	for _, f := range Examine(o, now) {
		rules = append(rules, f.Rule)
	}
	if len(rules) != 2 || rules[0] != "PairNotUpToDate" || rules[1] != "ImagesDiffer" {
		t.Error(rules)
	}
}
