package doctor

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// deletedAfter is how long a deletion may take: data is destroyed in the background, and retries
// come within minutes.
const deletedAfter = 15 * time.Minute

// deletionWaits: an object is being deleted, and its finalizer stays.
func deletionWaits(x *exam) {
	destroy := func(resource string) []string {
		return []string{"to destroy the data for good: kubectl patch " + resource + ` {name} --type=merge -p '{"spec":{"destroy":true}}'`,
			"to delete only the object: kubectl edit " + resource + " {name}, and remove the finalizer " + v1alpha1.Finalizer + "; the data stays on the disks, without an object"}
	}
	for i := range x.Clusters {
		o := &x.Clusters[i]
		x.deletion(kindCluster, o, o.Status.Conditions, fmt.Sprintf("the StorageCluster has %d pairs: each is removed when it has no LUN", o.Status.Pairs), []string{"delete the claims whose volumes are in the cluster: kubectl get lun"})
	}
	for i := range x.Pairs {
		o := &x.Pairs[i]
		x.deletion(kindPair, o, o.Status.Conditions, fmt.Sprintf("the pair has %d LUNs: the finalizer keeps it until it has none", o.Status.LogicalUnits), []string{"delete the claims whose volumes are on the pair (kubectl get lun), or raise spec.pairs of the StorageCluster again"})
	}
	for i := range x.LUNs {
		o := &x.LUNs[i]
		p := destroy("lun")
		if o.Spec.Destroy {
			p = []string{"do what the message says: the operator tries again by itself"}
		}
		x.deletion(kindLUN, o, o.Status.Conditions, "the finalizer keeps the LogicalUnit until its data is destroyed", p)
	}
	for i := range x.Snapshots {
		o := &x.Snapshots[i]
		p := destroy("lunsnap")
		if o.Spec.Destroy {
			p = []string{"do what the message says: the operator tries again by itself"}
		}
		x.deletion(kindSnapshot, o, o.Status.Conditions, "the finalizer keeps the LogicalUnitSnapshot until its data is destroyed", p)
	}
	for i := range x.Groups {
		o := &x.Groups[i]
		p := destroy("lungroupsnap")
		if o.Spec.Destroy {
			p = []string{"do what the message says: the operator tries again by itself"}
		}
		x.deletion(kindGroup, o, o.Status.Conditions, "the finalizer keeps the LogicalUnitGroupSnapshot until every pair has removed its snapshots", p)
	}
	for i := range x.Hosts {
		o := &x.Hosts[i]
		x.deletion(kindHost, o, o.Status.Conditions, "a finalizer keeps the Host", []string{"remove what set the finalizer: Gemel sets none on Hosts"})
	}
}

func (x *exam) deletion(kind string, o metav1.Object, conditions []metav1.Condition, cause string, procedure []string) {
	at := o.GetDeletionTimestamp()
	if at == nil || x.age(*at) < deletedAfter {
		return
	}
	evidence := []string{"deleted " + x.since(*at) + ", finalizers: " + strings.Join(o.GetFinalizers(), ", ")}
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil && (c.Status != metav1.ConditionTrue || c.Reason == v1alpha1.ReasonDataKept) {
		evidence = append(evidence, x.quote(*c))
	}
	x.add(kind, o.GetName(), Finding{Severity: Warning, Problem: "the " + kind + " is being deleted, and stays", Cause: cause, Evidence: evidence, Procedure: append(procedure, "see docs/kubernetes.md#objects")})
}
