package doctor

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// observedAfter is how long an object may wait until the status is of its spec.
const observedAfter = 10 * time.Minute

// notObserved: no controller acts on an object.
func notObserved(x *exam) {
	for i := range x.Clusters {
		o := &x.Clusters[i]
		x.observed(kindCluster, o, o.Status.ObservedGeneration, o.Status.Conditions)
	}
	for i := range x.Pairs {
		o := &x.Pairs[i]
		x.observed(kindPair, o, o.Status.ObservedGeneration, o.Status.Conditions)
	}
	for i := range x.LUNs {
		o := &x.LUNs[i]
		x.observed(kindLUN, o, o.Status.ObservedGeneration, o.Status.Conditions)
	}
	for i := range x.Snapshots {
		o := &x.Snapshots[i]
		x.observed(kindSnapshot, o, o.Status.ObservedGeneration, o.Status.Conditions)
	}
	for i := range x.Groups {
		o := &x.Groups[i]
		x.observed(kindGroup, o, o.Status.ObservedGeneration, o.Status.Conditions)
	}
	for i := range x.Hosts {
		o := &x.Hosts[i]
		x.observed(kindHost, o, o.Status.ObservedGeneration, o.Status.Conditions)
	}
}

// observed reports an object whose status is not of its spec. A condition that is not True says
// more, and has its own rule; a deletion has one too.
func (x *exam) observed(kind string, o metav1.Object, seen int64, conditions []metav1.Condition) {
	written := specWritten(o)
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c != nil && (c.Status != metav1.ConditionTrue || seen >= o.GetGeneration()) || o.GetDeletionTimestamp() != nil || x.age(written) < observedAfter {
		return
	}
	f := Finding{Severity: Warning, Problem: "the operator has not acted on the " + kind, Cause: "the operator does not run, or may not read or write the object",
		Evidence: []string{fmt.Sprintf("the object is of %s, generation %d, and its status is of generation %d", x.since(written), o.GetGeneration(), seen)},
		Procedure: []string{"kubectl get pods -n " + x.Namespace + " -l app.kubernetes.io/component=operator, and the logs of these pods",
			"the data is served without the operator; see docs/kubernetes.md#what-happens-when-"}}
	if c == nil {
		f.Evidence = append(f.Evidence, "it has no condition Ready yet")
	}
	if kind == kindHost {
		f.Problem, f.Cause = "the node plugin has not acted on the Host", "the node plugin of the worker does not run, or may not write the object"
		f.Procedure = []string{"check the pod of the DaemonSet gemel-csi-node on the worker, and its log: kubectl get pods -n " + x.Namespace + " -o wide", "see docs/workers.md#how-to-read-the-state"}
	}
	x.add(kind, o.GetName(), f)
}
