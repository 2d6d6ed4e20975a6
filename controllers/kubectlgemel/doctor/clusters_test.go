package doctor

import (
	"testing"
	"time"
)

func clusterIs(kind string, ok bool, reason, message string, since time.Duration) func(*Objects) {
	return func(o *Objects) { set(&o.Clusters[0].Status.Conditions, kind, ok, reason, message, since) }
}

var clusterCases = []trouble{
	{"nothing", "NoCluster", Note, "StorageCluster/(none)", func(o *Objects) { *o = Objects{} }, map[string]func(*Objects){"gone": func(o *Objects) { *o = *healthy(6) }}, []string{"kubectl apply"}},
	{"lost", "NoCluster", Warning, "StorageCluster/(none)", func(o *Objects) { o.Clusters = nil }, map[string]func(*Objects){"gone": func(o *Objects) { *o = *healthy(6) }}, []string{"kubectl gemel import"}},
	{"too few workers", "ClusterNotReady", Warning, "StorageCluster/main", clusterIs("Ready", false, "TooFewNodes", "only one worker may run target pods", time.Hour), map[string]func(*Objects){
		"gone": clusterIs("Ready", true, "Ready", "", 0), "not for long": clusterIs("Ready", false, "TooFewNodes", "", 4*time.Minute),
		"progress": clusterIs("Ready", false, "Progressing", "1 of 2 pairs exist", 29*time.Minute), "the pair says why": pairDownNow,
	}, []string{"only one worker"}},
	{"wrong schedule", "ClusterNotUpToDate", Warning, "StorageCluster/main", clusterIs("UpToDate", false, "Invalid", "spec.scrub.schedule", time.Hour), map[string]func(*Objects){
		"gone": clusterIs("UpToDate", true, "Ready", "", 0), "not for long": clusterIs("UpToDate", false, "Invalid", "", 4*time.Minute),
		"the pair says why": upToDate("Invalid", "spec.scrub.schedule", time.Hour),
	}, []string{"spec.scrub.schedule"}},
	{"pairs in other domains", "ClusterDomains", Warning, "StorageCluster/main", clusterIs("DomainsMatch", false, "Invalid", "spec.domains: z1 and z2 lack 1 of 2 pairs", time.Hour), map[string]func(*Objects){
		"gone": clusterIs("DomainsMatch", true, "Ready", "", 0), "not for long": clusterIs("DomainsMatch", false, "Invalid", "", 4*time.Minute),
	}, []string{"spec.domains: z1 and z2 lack"}},
}

func TestClusters(t *testing.T) { check(t, clusterCases) }
