package doctor

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/human"
	"github.com/gemel-storage/gemel/internal/scrubs"
)

const (
	// overdueAfter is how long after its time a scrub may begin, and overdueInTurn that of a pair
	// that waits while another pair of the cluster is scrubbed.
	overdueAfter  = 3 * 24 * time.Hour
	overdueInTurn = 7 * 24 * time.Hour
	// suspendedAfter is how long the copies may go without a comparison while the schedule is
	// suspended.
	suspendedAfter = 30 * 24 * time.Hour
)

const docScrub = "see docs/kubernetes.md#scrub and docs/operations.md#scrub"

// scrubMismatched: the copies differed. After a repair they are equal, and the cause remains: no
// write leaves such a difference.
func scrubMismatched(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		s := p.Status.Scrub
		if s == nil || s.LastResult == nil {
			continue
		}
		l := s.LastResult
		f := Finding{Severity: Critical, Problem: "the two copies of the pair differ", Cause: "a disk, its controller or its memory changes data, and nothing has repaired the difference",
			Procedure: []string{"the events ScrubMismatched name LUN and place: kubectl get events -A --field-selector reason=" + v1alpha1.ReasonScrubMismatched,
				"compare the data of the LUN with what you know of it, then kubectl gemel scrub {name} --repair writes the copy that hosts read to the other node", "if it happens again, replace the disk of the node at fault", docScrub}}
		switch {
		case scrubs.Result(l.Result) == scrubs.Mismatched:
		case l.MismatchedRanges > 0:
			f = Finding{Severity: Warning, Problem: "the two copies of the pair differed, and were repaired", Cause: "a disk, its controller or its memory changes data",
				Procedure: []string{"check the disks of both nodes; the events ScrubRepaired name each place: kubectl get events -A --field-selector reason=" + v1alpha1.ReasonScrubRepaired,
					"kubectl gemel scrub {name} --wait compares again: this finding ends with a clean scrub", docScrub}}
		default:
			continue
		}
		f.Evidence = []string{fmt.Sprintf("the last scrub was %s: %d ranges of 1 MiB differed, %d were repaired%s", l.Result, l.MismatchedRanges, l.RepairedRanges, x.ended(l))}
		x.add(kindPair, p.Name, f)
	}
}

func (x *exam) ended(l *v1alpha1.ScrubResult) string {
	if l == nil || l.FinishedAt == nil {
		return ""
	}
	return ", finished " + x.since(*l.FinishedAt)
}

// skips are what a scrub skips because of a disk. The other reasons are those of a pair in use.
var skips = map[string]bool{"not readable": true, "not repaired": true}

// scrubSkipped: a disk cannot be read or written.
func scrubSkipped(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		s := p.Status.Scrub
		if s == nil || s.Active {
			continue
		}
		for _, k := range s.Skipped {
			if !skips[k.Reason] || k.Ranges == 0 {
				continue
			}
			x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "the last scrub could not compare or repair all data", Cause: "ranges were " + k.Reason + ": a disk of the pair fails",
				Evidence:  []string{fmt.Sprintf("%d ranges with %s skipped: %s%s", k.Ranges, human.Size(uint64(max(0, k.Bytes))), k.Reason, x.ended(s.LastResult))},
				Procedure: []string{"the logs of the target pods name the disk: " + x.pods(""), "see docs/operations.md#a-disk-that-fails", docScrub}})
		}
	}
}

// scrubOverdue: a scrub that was due has not begun. It cannot begin while the pair is not in sync.
func scrubOverdue(x *exam) {
	busy := map[string]string{}
	for i := range x.Pairs {
		if p := &x.Pairs[i]; p.Status.Scrub != nil && p.Status.Scrub.Active {
			busy[p.Spec.Cluster] = p.Name
		}
	}
	for i := range x.Pairs {
		p := &x.Pairs[i]
		s, other := p.Status.Scrub, busy[p.Spec.Cluster]
		if s == nil || s.Active || s.NextAt == nil || !isTrue(p.Status.Conditions, v1alpha1.ConditionInSync) {
			continue
		}
		limit, cause := overdueAfter, "the operator does not begin it"
		if other != "" {
			limit, cause = overdueInTurn, "other pairs of the cluster are scrubbed first: the time or the rate is not enough for all pairs"
		}
		// A pair that has just come back into sync has its turn soon.
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionInSync); x.age(*s.NextAt) < limit || x.age(c.LastTransitionTime) < overdueAfter {
			continue
		}
		evidence := []string{"the scrub was due " + x.since(*s.NextAt) + ", schedule " + s.Schedule}
		if l := s.LastResult; l != nil {
			evidence = append(evidence, "the last scrub was "+l.Result+x.ended(l))
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "the scrub of the pair is overdue: nothing checks the content of its copies", Cause: cause, Evidence: evidence,
			Procedure: []string{"begin it now: kubectl gemel scrub {name} --wait", "for more pairs at a time or more bytes per second: spec.scrub.parallel and spec.scrub.bytesPerSecond of the StorageCluster",
				"check that the operator runs: kubectl get pods -n " + x.Namespace + " -l app.kubernetes.io/component=operator", docScrub}})
	}
}

// scrubSuspended: the schedule is suspended, and no person starts scrubs instead.
func scrubSuspended(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		c, s := x.clusters[p.Spec.Cluster], cmp.Or(p.Status.Scrub, &v1alpha1.ScrubStatus{})
		if c == nil || !c.Spec.Scrub.Suspend || s.Active {
			continue
		}
		last, text := p.CreationTimestamp, "no scrub is known; the TargetPair was made "
		if l := s.LastResult; l != nil && l.FinishedAt != nil && l.FinishedAt.After(last.Time) {
			last, text = *l.FinishedAt, "the last scrub finished "
		}
		if x.age(last) < suspendedAfter {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Note, Problem: "nothing checks the content of the copies of the pair", Cause: "spec.scrub.suspend of StorageCluster " + c.Name + " is set", Evidence: []string{text + x.since(metav1.NewTime(last.Time))},
			Procedure: []string{"remove spec.scrub.suspend, or begin scrubs yourself: kubectl gemel scrub {name}", docScrub}})
	}
}
