package doctor

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
)

const (
	// stuckAfter is how long the progress of a resync, in percent, may stay the same.
	stuckAfter = time.Hour
	// slowest bytes per second at which a resync counts as progressing: of a large pair one percent
	// takes long.
	slowest = 8 << 20
)

// stuck reports whether the resync of a pair makes no progress. The status has the progress in
// whole percent: an unchanged status has the same progress as then.
func stuck(x *exam, p *v1alpha1.TargetPair) bool {
	n, at := copying(p), statusWritten(p)
	if n == nil || at.IsZero() || !isFalse(p.Status.Conditions, v1alpha1.ConditionInSync) {
		return false
	}
	limit := stuckAfter
	if c, f := p.Status.Capacity, p.Status.Free; c != nil && f != nil {
		limit = max(limit, time.Duration((c.Value()-f.Value())/100/slowest)*time.Second)
	}
	return x.age(at) >= limit
}

// resyncStuck: the copy to the other node does not progress.
func resyncStuck(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		if !stuck(x, p) {
			continue
		}
		n := copying(p)
		at := "an unknown percentage"
		if n.ResyncPercent != nil {
			at = fmt.Sprintf("%d%%", *n.ResyncPercent)
		}
		evidence := []string{fmt.Sprintf("the progress is %s since %s or longer", at, x.since(statusWritten(p)))}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionInSync); c != nil {
			evidence = append(evidence, x.quote(*c))
		}
		x.add(kindPair, p.Name, Finding{Severity: Critical, Problem: "only one node has all data of the pair, and the copy to the other node makes no progress",
			Cause: "node " + n.Name + " copies to node " + pair.Other(n.Name) + ", whose disk or network does not take the data, or the operator does not write the status any more", Evidence: append(evidence, nodes(p)...),
			Procedure: []string{"check that the operator runs: kubectl get pods -n " + x.Namespace + " -l app.kubernetes.io/component=operator",
				fmt.Sprintf("read the log of both nodes: kubectl logs -n %s %s, and %s", x.Namespace, pair.PodName(placeholder, "a"), pair.PodName(placeholder, "b")),
				"check the disk of node " + pair.Other(n.Name) + ": see docs/operations.md#a-disk-that-fails"}})
	}
}
