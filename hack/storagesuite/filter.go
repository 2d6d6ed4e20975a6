package main

import (
	"regexp"
	"slices"
)

// rule names tests, or reasons for skips, by a pattern, and says why they are as they are.
type rule struct {
	pattern *regexp.Regexp
	why     string
}

func match(rules []rule, s string) (why string, ok bool) {
	for _, r := range rules {
		if r.pattern.MatchString(s) {
			return r.why, true
		}
	}
	return "", false
}

// leftOut are tests that are not started, by name.
var leftOut = []rule{
	{regexp.MustCompile(`should provision storage with any volume data source`),
		"wants hello-populator and volume-data-source-validator, which package registries do not have; it tests those, not the driver"},
	{regexp.MustCompile(`\((filesystem volmode|ext4|xfs)\).*should concurrently access the single volume from pods on different node`),
		"ReadWriteMany is offered for raw block; the tests know only of one capability for both"},
}

// understood are the reasons for which a test may skip itself. A skip for another reason fails the
// run: it would be a capability that was lost, or one that the declaration forgot.
var understood = []rule{
	{regexp.MustCompile(`InlineVolume|PreprovisionedPV|pre-provisioned volume`),
		"volumes are provisioned dynamically, and are no part of a pod: an ephemeral one is a claim that the pod owns"},
	{regexp.MustCompile(`\b(ext3|ntfs)\b`), "filesystems are XFS and ext4"},
	{regexp.MustCompile(`snapshot metadata`), "changed blocks of a snapshot are not reported"},
	{regexp.MustCompile(`SELinuxMount`), "CSIDriver.seLinuxMount is not set"},
	{regexp.MustCompile(`^Multiple generic ephemeral volumes with immediate binding`),
		"the chart's class binds at once; the test fears that volumes land in different topology segments"},
	// Tests that one test pattern has and another does not have.
	{regexp.MustCompile(`Suite ".*" does not support|doesn't support (GenericEphemeralVolume|DynamicPV)|volume type ".*" is (not )?ephemeral`),
		"the test is for another kind of volume"},
	{regexp.MustCompile(`[Bb]lock volumes? .*(not|can)|for block mode|non-filesystem volume mode|not valid for Block|covered by block volume case`),
		"the test is for the other volume mode"},
}

// understoodOf are reasons that say too little alone: they are matched with the test's name, a
// colon and the reason.
var understoodOf = []rule{
	// The same words come from a driver that takes no snapshots.
	{regexp.MustCompile(`\(filesystem volmode\)\] multiVolume .* and restored snapshot .*: Driver ".*" does not support snapshots`),
		"the test's pattern has no kind of snapshot; others of the same name have"},
}

// oneWorker are reasons that are understood where volumes are for one worker at a time.
var oneWorker = []rule{
	{regexp.MustCompile(`doesn't support RWX -- skipping|does not support ROX access mode`),
		"a striped volume is for one worker at a time"},
}

// skipped says why a test may skip itself; more are rules of this run only.
func skipped(test, reason string, more []rule) (why string, ok bool) {
	if why, ok = match(slices.Concat(understood, more), reason); ok {
		return why, ok
	}
	return match(understoodOf, test+": "+reason)
}
