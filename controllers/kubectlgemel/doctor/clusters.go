package doctor

import (
	"slices"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// noCluster: nothing can be provisioned.
func noCluster(x *exam) {
	if len(x.Clusters) > 0 {
		return
	}
	f := Finding{Severity: Note, Problem: "there is no StorageCluster", Cause: "none was made yet", Evidence: []string{"the API server lists no StorageCluster and no TargetPair"},
		Procedure: []string{"kubectl apply -f config/samples/storagecluster.yaml", "see docs/kubernetes.md#install"}}
	if len(x.Pairs)+len(x.LUNs) > 0 {
		f = Finding{Severity: Warning, Problem: "there is no StorageCluster, and there are pairs or LUNs", Cause: "the StorageCluster was deleted by force, with its definition, or with etcd",
			Evidence:  []string{"the pairs continue to serve, and no change of a spec is applied to them"},
			Procedure: []string{"kubectl gemel import shows what it would make; with --apply it makes the StorageCluster again", "see docs/kubernetes.md#the-objects-are-lost"}}
	}
	x.add(kindCluster, "(none)", f)
}

// clusterNotReady: a pair of the spec cannot be made. Pairs that do not serve have findings of
// their own.
func clusterNotReady(x *exam) {
	x.clusterCondition(v1alpha1.ConditionReady, "the StorageCluster is not Ready: not every pair of its spec exists")
}

// clusterNotUpToDate: a change of the spec is not applied, and no pair says why.
func clusterNotUpToDate(x *exam) {
	x.clusterCondition(v1alpha1.ConditionUpToDate, "the StorageCluster is not what its spec says")
}

// clusterDomains: a couple of spec.domains lacks pairs.
func clusterDomains(x *exam) {
	x.clusterCondition(v1alpha1.ConditionDomainsMatch, "the pairs of the StorageCluster are not in the domains of its spec")
}

func (x *exam) clusterCondition(kind, problem string) {
	for i := range x.Clusters {
		k := &x.Clusters[i]
		c, long := x.failing(k.Status.Conditions, kind)
		explained := slices.ContainsFunc(x.Pairs, func(p v1alpha1.TargetPair) bool {
			return p.Spec.Cluster == k.Name && isFalse(p.Status.Conditions, kind)
		})
		if !long || explained || !k.DeletionTimestamp.IsZero() {
			continue
		}
		x.add(kindCluster, k.Name, Finding{Severity: Warning, Problem: problem, Cause: c.Message, Evidence: []string{x.quote(c)},
			Procedure: []string{"change the fields that the message names, or add workers or volumes", "see docs/kubernetes.md#objects"}})
	}
}
