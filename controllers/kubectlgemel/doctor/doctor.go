// Package doctor examines the objects of Gemel and says what is wrong, why, and what to do. It is a
// pure function of the objects and the time: it reads nothing and changes nothing.
package doctor

import (
	"cmp"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Severity of a finding.
type Severity string

// Severities, the worst first.
const (
	// Critical: hosts do not get their data, data is lost or in doubt, or the next failure of one
	// node or disk has that effect and nothing is under way that changes it.
	Critical Severity = "Critical"
	// Warning: something does not work or is not redundant; hosts get their data.
	Warning Severity = "Warning"
	// Note: nothing is affected yet, and a person should do something about it.
	Note Severity = "Note"
)

// Severities, the worst first.
var Severities = []Severity{Critical, Warning, Note}

// Finding is one thing that is wrong. Its JSON is stable: fields are added, and none is renamed.
type Finding struct {
	Severity Severity `json:"severity"`
	// Rule is a word for the kind of trouble, for programs: it stays the same when texts change.
	Rule string `json:"rule"`
	// Object that has the trouble, as Kind/name. If Count is above 1, it is the first of them.
	Object string `json:"object"`
	// Count of the objects that have this trouble.
	Count int `json:"count"`
	// Others are the names of some of the other objects, at most maxOthers.
	Others []string `json:"others,omitempty"`
	// Problem, and its cause as far as the objects show it.
	Problem string `json:"problem"`
	Cause   string `json:"cause"`
	// Evidence is what the objects say, a line each; of alike findings, that of the first ones.
	Evidence []string `json:"evidence"`
	// Procedure is what to do, a line each, with the page of the documentation.
	Procedure []string `json:"procedure"`

	at ref
}

// ref is an object.
type ref struct{ kind, name string }

// Kinds, in the order in which findings of the same severity are listed: causes come before their
// effects.
const (
	kindCluster  = "StorageCluster"
	kindPair     = "TargetPair"
	kindLUN      = "LogicalUnit"
	kindSnapshot = "LogicalUnitSnapshot"
	kindGroup    = "LogicalUnitGroupSnapshot"
	kindHost     = "Host"
)

var kinds = []string{kindCluster, kindPair, kindLUN, kindSnapshot, kindGroup, kindHost}

// Objects are what is examined.
type Objects struct {
	Clusters  []v1alpha1.StorageCluster
	Pairs     []v1alpha1.TargetPair
	LUNs      []v1alpha1.LogicalUnit
	Snapshots []v1alpha1.LogicalUnitSnapshot
	Groups    []v1alpha1.LogicalUnitGroupSnapshot
	Hosts     []v1alpha1.Host
	// Namespace of the operator and the target pods, for the commands of procedures.
	Namespace string
}

// exam is one examination.
type exam struct {
	*Objects
	now      time.Time
	clusters map[string]*v1alpha1.StorageCluster
	pairs    map[string]*v1alpha1.TargetPair
	luns     map[string][]*v1alpha1.LogicalUnit // by pair

	rule string
	out  []Finding
}

// add adds a finding of the current rule about an object.
func (x *exam) add(kind, name string, f Finding) {
	f.Rule, f.at = x.rule, ref{kind, name}
	x.out = append(x.out, f)
}

// rule finds one kind of trouble.
type rule struct {
	name    string
	examine func(*exam)
}

// rules are all kinds of trouble. Rules leave out what another rule reports as its cause.
var rules = []rule{
	{"NoCluster", noCluster},
	{"ClusterNotReady", clusterNotReady},
	{"ClusterNotUpToDate", clusterNotUpToDate},
	{"ClusterDomains", clusterDomains},
	{"NotObserved", notObserved},
	{"OperatorSilent", operatorSilent},
	{"PairDown", pairDown},
	{"PairNotStarted", pairNotStarted},
	{"SingleCopy", singleCopy},
	{"ResyncStuck", resyncStuck},
	{"NodeUnreachable", nodeUnreachable},
	{"NodeCrashed", nodeCrashed},
	{"PairNotUpToDate", pairNotUpToDate},
	{"RecordMissing", recordMissing},
	{"ImagesDiffer", imagesDiffer},
	{"ReplaceLeft", replaceLeft},
	{"BlocksLost", blocksLost},
	{"BlocksHealed", blocksHealed},
	{"ScrubMismatched", scrubMismatched},
	{"ScrubSkipped", scrubSkipped},
	{"ScrubOverdue", scrubOverdue},
	{"ScrubSuspended", scrubSuspended},
	{"Orphans", orphans},
	{"PoolFull", poolFull},
	{"PoolNearlyFull", poolNearlyFull},
	{"PoolOvercommitted", poolOvercommitted},
	{"LUNsAway", lunsAway},
	{"BalancingOff", balancingOff},
	{"DrainStands", drainStands},
	{"LUNNotReady", lunNotReady},
	{"LUNNotPublished", lunNotPublished},
	{"SnapshotNotReady", snapshotNotReady},
	{"GroupSnapshotNotReady", groupNotReady},
	{"HostNotReady", hostNotReady},
	{"HostNameTwice", hostNameTwice},
	{"HostWithoutPath", hostWithoutPath},
	{"PathsIncomplete", pathsIncomplete},
	{"PathsNotAsked", pathsNotAsked},
	{"DeletionWaits", deletionWaits},
}

// Examine returns everything that is wrong: the worst first, then by object. Many alike findings
// are one, so the number of findings has a limit that does not depend on the number of objects.
func Examine(o *Objects, now time.Time) []Finding {
	x := &exam{Objects: o, now: now, clusters: map[string]*v1alpha1.StorageCluster{}, pairs: map[string]*v1alpha1.TargetPair{}, luns: map[string][]*v1alpha1.LogicalUnit{}}
	for i := range o.Clusters {
		x.clusters[o.Clusters[i].Name] = &o.Clusters[i]
	}
	for i := range o.Pairs {
		x.pairs[o.Pairs[i].Name] = &o.Pairs[i]
	}
	for i := range o.LUNs {
		if at := o.LUNs[i].Spec.Placement; at != nil {
			x.luns[at.Pair] = append(x.luns[at.Pair], &o.LUNs[i])
		}
	}
	all := []Finding{}
	for _, r := range rules {
		x.rule, x.out = r.name, nil
		r.examine(x)
		slices.SortStableFunc(x.out, compare)
		all = append(all, merge(x.out)...)
	}
	slices.SortStableFunc(all, compare)
	return all
}

// compare orders findings: severity, kind, name. Findings of one object keep the order of the
// rules.
func compare(a, b Finding) int {
	return cmp.Or(cmp.Compare(slices.Index(Severities, a.Severity), slices.Index(Severities, b.Severity)),
		cmp.Compare(slices.Index(kinds, a.at.kind), slices.Index(kinds, b.at.kind)), cmp.Compare(a.at.name, b.at.name))
}
