package doctor

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// whatToDo is the procedure for a reason of a LogicalUnit or LogicalUnitSnapshot. The messages of
// the conditions have the details.
var whatToDo = map[string][]string{
	v1alpha1.ReasonNoRoom:       {"add a pair (spec.pairs of the StorageCluster) or larger disks, or delete volumes and snapshots", "see docs/kubernetes.md#pools"},
	v1alpha1.ReasonInvalid:      {"the message names the field and the fix", "see docs/kubernetes.md#storageclass"},
	v1alpha1.ReasonNoSource:     {"the source of the copy is gone: delete the claim or snapshot, and make it from another source", "see docs/kubernetes.md#storageclass"},
	v1alpha1.ReasonMissing:      {"do what the message says: nothing is created in place of lost data; restore it from a backup", "see docs/kubernetes.md#the-objects-are-lost and docs/operations.md#damaged-blocks"},
	v1alpha1.ReasonQuarantined:  {"stop the pods that use the volume, keep the logs of the target pods and report them, then do what the message says", "see docs/operations.md#a-lun-that-ends-processes"},
	v1alpha1.ReasonPairDown:     {"check the pair and the operator's network to its nodes: kubectl gemel status", "see docs/kubernetes.md#a-pair-that-no-longer-serves"},
	v1alpha1.ReasonNotEnrolled:  {"check the node plugin of the worker that the message names: kubectl get hosts", "see docs/kubernetes.md#security"},
	v1alpha1.ReasonNotConfirmed: {"the operator tries again by itself; if it stays, read the logs of the operator and of the target pods", "see docs/kubernetes.md#show-the-health-of-gemel-and-diagnose-a-claim"},
}

var seeMessage = []string{"do what the message says; kubectl gemel why CLAIM -n NAMESPACE follows one claim to its disks", "see docs/kubernetes.md#show-the-health-of-gemel-and-diagnose-a-claim"}

func procedureFor(reason, describe string) []string {
	p := whatToDo[reason]
	if p == nil {
		p = seeMessage
	}
	return append([]string{describe}, p...)
}

// lunNotReady: a LUN does not exist, or is not what its spec says.
func lunNotReady(x *exam) {
	for i := range x.LUNs {
		lu := &x.LUNs[i]
		c, long := x.failing(lu.Status.Conditions, v1alpha1.ConditionReady)
		if !long || !lu.DeletionTimestamp.IsZero() || x.pairsFault(lu, c.Reason) {
			continue
		}
		f := Finding{Severity: Warning, Problem: "the LogicalUnit is not Ready", Cause: causeOf(lu, c), Evidence: []string{x.quote(c)},
			Procedure: procedureFor(c.Reason, "kubectl describe lun {name}")}
		switch c.Reason {
		case v1alpha1.ReasonMissing:
			f.Severity, f.Problem = Critical, "the data of the LogicalUnit is missing"
		case v1alpha1.ReasonQuarantined:
			f.Severity, f.Problem = Critical, "hosts cannot use the LUN, because its commands ended processes of its pair"
		}
		x.add(kindLUN, lu.Name, f)
	}
}

// lunNotPublished: a host of the spec cannot use the LUN, or one that is not in the spec still can.
func lunNotPublished(x *exam) {
	for i := range x.LUNs {
		lu := &x.LUNs[i]
		c, long := x.failing(lu.Status.Conditions, v1alpha1.ConditionPublished)
		if !long || !lu.DeletionTimestamp.IsZero() || x.pairsFault(lu, c.Reason) {
			continue
		}
		if r := meta.FindStatusCondition(lu.Status.Conditions, v1alpha1.ConditionReady); r != nil && r.Status != "True" && r.Reason == c.Reason {
			continue // the same cause
		}
		x.add(kindLUN, lu.Name, Finding{Severity: Warning, Problem: "the LogicalUnit is not published: a host of its spec cannot use it, or a host that was removed is not fenced yet", Cause: causeOf(lu, c), Evidence: []string{x.quote(c)},
			Procedure: procedureFor(c.Reason, "kubectl describe lun {name}")})
	}
}

// pairsFault reports whether the LUN waits for a pair that is not Ready, which has its own finding.
func (x *exam) pairsFault(lu *v1alpha1.LogicalUnit, reason string) bool {
	if lu.Spec.Placement == nil {
		return false
	}
	return x.unready(lu.Spec.Placement.Pair, reason)
}

func (x *exam) unready(pair, reason string) bool {
	p := x.pairs[pair]
	return p != nil && isFalse(p.Status.Conditions, v1alpha1.ConditionReady) && (reason == v1alpha1.ReasonPairDown || reason == v1alpha1.ReasonNotConfirmed)
}

// causeOf is the message of a condition without the names of the LUN and its hosts: LUNs that fail
// for one reason have the same cause then.
func causeOf(lu *v1alpha1.LogicalUnit, c metav1.Condition) string {
	text := general(c.Message, lu.Name, "NAME")
	if at := lu.Spec.Placement; at != nil {
		text = general(text, at.UUID, "UUID")
	}
	for _, h := range lu.Spec.Hosts {
		text = general(general(text, h.IQN, "HOST"), strings.ToLower(h.IQN), "HOST")
	}
	return c.Reason + ": " + text
}

// general replaces a name in a text by a word. A short name may be a part of other words.
func general(text, name, word string) string {
	if len(name) < 5 {
		return text
	}
	return strings.ReplaceAll(text, name, word)
}

// snapshotNotReady: a snapshot was not taken.
func snapshotNotReady(x *exam) {
	for i := range x.Snapshots {
		s := &x.Snapshots[i]
		c, long := x.failing(s.Status.Conditions, v1alpha1.ConditionReady)
		if !long || !s.DeletionTimestamp.IsZero() || s.Spec.Placement != nil && x.unready(s.Spec.Placement.Pair, c.Reason) || x.waitsForGroup(s, c.Reason) {
			continue
		}
		text := general(general(c.Message, s.Name, "NAME"), s.Spec.Source, "SOURCE")
		if at := s.Spec.Placement; at != nil {
			text = general(general(text, at.UUID, "UUID"), at.SourceUUID, "UUID")
		}
		f := Finding{Severity: Warning, Problem: "the LogicalUnitSnapshot is not Ready", Cause: c.Reason + ": " + text, Evidence: []string{x.quote(c)},
			Procedure: procedureFor(c.Reason, "kubectl describe lunsnap {name}")}
		if c.Reason == v1alpha1.ReasonMissing {
			f.Severity, f.Problem = Critical, "the data of the LogicalUnitSnapshot is missing"
		}
		x.add(kindSnapshot, s.Name, f)
	}
}
