package main

import "regexp"

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

// understood are the reasons for which a test may skip itself. A skip for another reason fails the run: it would be a
// capability that was lost, or one that the declaration forgot.
var understood = []rule{
	{regexp.MustCompile(`[Dd]river .* doesn't support (InlineVolume|PreprovisionedPV)`), "for drivers inside Kubernetes: the volume of an external one is provisioned dynamically"},
	{regexp.MustCompile(`does not support volume type "CSIInlineVolume"`), "inline volumes have no replicas to speak of: not offered"},
	{regexp.MustCompile(`doesn't support (ext3|ntfs)|does not support "(ext3|ntfs)" fs type`), "filesystems are XFS and ext4"},
}
