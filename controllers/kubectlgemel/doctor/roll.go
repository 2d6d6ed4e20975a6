package doctor

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// pairNotUpToDate: the operator cannot make the pair what its spec says. While the pair has one
// copy or is down, a roll waits for that.
func pairNotUpToDate(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		c, long := x.failing(p.Status.Conditions, v1alpha1.ConditionUpToDate)
		if !long || c.Reason == v1alpha1.ReasonMissing || isFalse(p.Status.Conditions, v1alpha1.ConditionReady) {
			continue
		}
		if isFalse(p.Status.Conditions, v1alpha1.ConditionInSync) && (c.Reason == v1alpha1.ReasonRolling || c.Reason == v1alpha1.ReasonProgressing) {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "the nodes of the pair do not match the spec", Cause: c.Message, Evidence: append([]string{x.quote(c)}, nodes(p)...),
			Procedure: []string{"do what the message says; the pair continues to serve", "see docs/kubernetes.md#objects for the causes, docs/kubernetes.md#pools for pools and docs/upgrades.md#what-is-refused for upgrades"}})
	}
}

// recordMissing: without the Lease no node can take over.
func recordMissing(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		c, long := x.failing(p.Status.Conditions, v1alpha1.ConditionUpToDate)
		if !long || c.Reason != v1alpha1.ReasonMissing || isFalse(p.Status.Conditions, v1alpha1.ConditionReady) {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Critical, Problem: "the record of the pair is missing: if a node fails, the other node cannot take over", Cause: c.Message, Evidence: append([]string{x.quote(c)}, nodes(p)...),
			Procedure: []string{"do what the message says, and restart no node before", "see docs/operations.md#the-record-in-kubernetes"}})
	}
}

// imagesAfter is how long the nodes of a pair may have different images in a roll.
const imagesAfter = 2 * time.Hour

// imagesDiffer: an upgrade that is not completed. Features that only the newer release has are off
// until both nodes have it.
func imagesDiffer(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		a, b := nodeOf(p, "a"), nodeOf(p, "b")
		if a == nil || b == nil || a.Image == "" || b.Image == "" || a.Image == b.Image {
			continue
		}
		cause, since := "the operator does not roll the pair at present", []string{}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionUpToDate); c != nil {
			rolling := c.Status != "True" && (c.Reason == v1alpha1.ReasonRolling || c.Reason == v1alpha1.ReasonProgressing)
			limit := patience
			if rolling {
				limit, cause = imagesAfter, "the upgrade of the pair has not ended: "+c.Message
			}
			if x.age(c.LastTransitionTime) < limit {
				continue
			}
			since = []string{x.quote(*c)}
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "the nodes of the pair have different images", Cause: cause,
			Evidence: append([]string{fmt.Sprintf("node a has %s, node b has %s", a.Image, b.Image)}, since...),
			Procedure: []string{"complete the upgrade, or go back: kubectl get storagecluster " + p.Spec.Cluster + " -o jsonpath='{.status.image}' shows the image that both nodes get",
				"see docs/upgrades.md#upgrade and docs/upgrades.md#going-back"}})
	}
}

// replaceLeft: the same replacement cannot be requested again before a person has removed the
// field.
func replaceLeft(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		want, done := p.Spec.Replace, p.Status.Replaced
		if want == nil || done == nil || *want != *done || !x.trueFor(p.Status.Conditions, v1alpha1.ConditionInSync, time.Hour) {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Note, Problem: "spec.replace is still set, although the replacement is done", Cause: "the field was not removed: until it is, the same node cannot be replaced again",
			Evidence:  []string{fmt.Sprintf("spec.replace and status.replaced name node %s, and both nodes are in sync", want.Node)},
			Procedure: []string{`kubectl patch targetpair {name} --type=json -p '[{"op":"remove","path":"/spec/replace"}]'`, "see docs/kubernetes.md#a-node-or-its-disk-is-lost-for-good"}})
	}
}
