package pair

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/scrubs"
)

// The operator starts the scrubs of pairs by the schedule of their cluster (docs/decisions/0050):
// the nodes have no schedule. A running scrub continues without the operator.

// turns are the pairs whose scrub was started a moment ago, so that their status may not show it
// yet.
type turns struct {
	mu    sync.Mutex
	begun map[string]time.Time
}

// turnTime is how long a started scrub counts as running before the status shows it, and how long a
// status that shows a running scrub is valid: no pair waits for a pair that does not answer.
const turnTime = 5 * time.Minute

// reconcileScrub updates the status of the pair's scrub, and starts the next one if it is due, the
// pair is healthy and it has its turn. The error says what is wrong with the schedule.
func (r *Reconciler) reconcileScrub(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, v *view, well bool) error {
	before := p.Status.Scrub
	now := r.now()
	report := v.scrub(before)
	next := scrubStatus(before, report, now)
	v.scrubs = next
	if c == nil {
		return nil
	}
	s, err := schedule(c)
	if err != nil {
		next.NextAt = nil
		return waiting(v1alpha1.ReasonInvalid, "%v", err)
	}
	next.NextAt, next.Schedule = nextScrub(before, c.Spec.Scrub.Schedule, s, report, now), c.Spec.Scrub.Schedule
	if next.NextAt == nil || now.Before(next.NextAt.Time) || !well || !v.inSync() || report != nil && report.Active {
		return nil
	}
	if !r.acquireTurn(ctx, c, p, now) {
		return nil
	}
	if err := r.startScrub(ctx, c, p, v); err != nil {
		r.turns.remove(p.Name)
		log.FromContext(ctx).Info("cannot start a scheduled scrub", "err", err)
		return nil
	}
	v.scrubs.NextAt, v.scrubs.Schedule = stamp(s.Next(now.UTC())), c.Spec.Scrub.Schedule
	return nil
}

// acquireTurn reports whether a pair may start a scrub: at most spec.scrub.parallel pairs of a
// cluster are scrubbed at a time.
func (r *Reconciler) acquireTurn(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, now time.Time) bool {
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	l := &v1alpha1.TargetPairList{}
	if err := r.List(ctx, l); err != nil {
		return false // the next reconcile comes soon
	}
	others := int32(0)
	for i := range l.Items {
		q := &l.Items[i]
		if q.Name == p.Name || q.Spec.Cluster != p.Spec.Cluster {
			continue
		}
		s, begun := q.Status.Scrub, r.turns.begun[q.Name]
		observed := s != nil && s.ObservedAt != nil && !s.ObservedAt.Time.Before(begun.Truncate(time.Second))
		if observed && s.Active && now.Sub(s.ObservedAt.Time) < turnTime || !observed && !begun.IsZero() && now.Sub(begun) < turnTime {
			others++
		}
	}
	if others >= max(1, c.Spec.Scrub.Parallel) {
		return false
	}
	if r.turns.begun == nil {
		r.turns.begun = map[string]time.Time{}
	}
	r.turns.begun[p.Name] = now
	return true
}

// remove gives up a turn: the scrub could not be started.
func (t *turns) remove(pair string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.begun, pair)
}

// startScrub starts a scrub, and updates the status from the response.
func (r *Reconciler) startScrub(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, v *view) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	t, err := r.Targets.Node(ctx, p, Nodes[0])
	if err != nil {
		return err
	}
	x := &c.Spec.Scrub
	req := &targetv1.ScrubRequest{Repair: v.repair(x), Origin: targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE}
	if x.BytesPerSecond != nil {
		req.BytesPerSecond = uint64(x.BytesPerSecond.Value())
	}
	a, err := t.Scrub(ctx, req)
	if err != nil { // including ALREADY_EXISTS of a release that does not say which scrub runs: this one remains due
		return err
	}
	if !a.UnderWay {
		r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonScrubStarted, "Scrub", fmt.Sprintf("a scheduled scrub compares both copies of %d bytes", a.TotalBytes))
	}
	if report, ok := scrubs.Of(a.Shares...); ok {
		v.scrubs = scrubStatus(p.Status.Scrub, &report, r.now())
	}
	return nil
}

// repair reports whether a scheduled scrub repairs what differs. If the spec does not say, all
// blocks of both nodes must have checksums: a damaged copy does not match them, so that damage is
// never copied. Blocks lack checksums while a node runs a release without them, and until the
// blocks written by such a release have been processed.
func (v *view) repair(x *v1alpha1.Scrub) bool {
	if x.Repair != nil {
		return *x.Repair
	}
	for i := range v.nodes {
		if c := v.nodes[i].status.GetChecksums(); c == nil || c.CoveredBytes < c.TotalBytes {
			return false
		}
	}
	return true
}

// scrub is the newest scrub that the nodes report, nil if there is none. For a node that does not
// answer, its last report counts, as a share that has ended: the pair is not in sync, so that it
// compares nothing.
func (v *view) scrub(before *v1alpha1.ScrubStatus) *scrubs.Report {
	var shares []*targetv1.Scrub
	for i := range v.nodes {
		n := &v.nodes[i]
		if n.status != nil {
			shares = append(shares, n.status.Scrub, n.status.LastScrub)
		}
	}
	for i := range v.nodes {
		if n := &v.nodes[i]; n.status == nil && before != nil && before.ID != "" && before.StartedAt != nil {
			for _, x := range before.Shares {
				if x.Node == n.name && slices.ContainsFunc(shares, func(s *targetv1.Scrub) bool { return s.GetId() == before.ID }) {
					shares = append(shares, &targetv1.Scrub{Id: before.ID, Node: n.name, TotalBytes: uint64(x.TotalBytes), DoneBytes: uint64(x.DoneBytes),
						SkippedBytes: uint64(x.SkippedBytes), Started: timestamppb.New(before.StartedAt.Time), Reason: "node " + n.name + " does not answer"})
				}
			}
		}
	}
	r, ok := scrubs.Of(shares...)
	if !ok {
		return nil
	}
	return &r
}

// scrubInterval limits how often the progress of a scrub is written: each write triggers another
// reconcile.
const scrubInterval = 9 * time.Second

// scrubStatus is the new status of a scrub. Progress alone is written once per scrubInterval.
func scrubStatus(before *v1alpha1.ScrubStatus, r *scrubs.Report, now time.Time) *v1alpha1.ScrubStatus {
	if before == nil {
		before = &v1alpha1.ScrubStatus{}
	}
	if r == nil {
		return before.DeepCopy()
	}
	same := sameScrub(before, r)
	if same && before.Active == r.Active && before.MismatchedRanges == int64(r.Mismatched) && before.RepairedRanges == int64(r.Repaired) && before.Reason == r.Reason &&
		(!r.Active && before.DoneBytes == int64(r.DoneBytes) && before.SkippedBytes == int64(r.SkippedBytes) || r.Active && before.ObservedAt != nil && now.Sub(before.ObservedAt.Time) < scrubInterval) {
		return before.DeepCopy()
	}
	s := &v1alpha1.ScrubStatus{ID: r.ID, Active: r.Active, Origin: v1alpha1.ScrubByPerson, Repair: r.Repair, StartedAt: stamp(r.Started), FinishedAt: stamp(r.Finished),
		ObservedAt: stamp(now), EstimatedCompletion: stamp(r.ExpectedEnd), TotalBytes: int64(r.TotalBytes), DoneBytes: int64(r.DoneBytes), SkippedBytes: int64(r.SkippedBytes),
		MismatchedRanges: int64(r.Mismatched), RepairedRanges: int64(r.Repaired), Reason: r.Reason, LastResult: before.LastResult, NextAt: before.NextAt, Schedule: before.Schedule}
	if r.Scheduled {
		s.Origin = v1alpha1.ScrubBySchedule
	}
	if same {
		s.StartedAt = before.StartedAt
	}
	for _, x := range r.Skipped {
		s.Skipped = append(s.Skipped, v1alpha1.ScrubSkip{Reason: x.Reason, Ranges: int64(x.Ranges), Bytes: int64(x.Bytes)})
	}
	for _, x := range r.Shares {
		if x.Node == "" { // a release that reports no shares
			continue
		}
		share := v1alpha1.ScrubShare{Node: x.Node, TotalBytes: int64(x.TotalBytes), DoneBytes: int64(x.DoneBytes), SkippedBytes: int64(x.SkippedBytes)}
		if same {
			share.Findings = findingsOf(before, x.Node)
		}
		if k := len(x.Findings); k > 0 {
			share.Findings = max(share.Findings, int64(x.Findings[k-1].Number))
		}
		s.Shares = append(s.Shares, share)
	}
	slices.SortFunc(s.Shares, func(x, y v1alpha1.ScrubShare) int { return int(x.Node[0]) - int(y.Node[0]) })
	if !r.Active {
		s.LastResult = &v1alpha1.ScrubResult{ID: s.ID, Result: string(r.Result()), StartedAt: s.StartedAt, FinishedAt: s.FinishedAt, TotalBytes: s.TotalBytes,
			DoneBytes: s.DoneBytes, MismatchedRanges: s.MismatchedRanges, RepairedRanges: s.RepairedRanges, Reason: s.Reason}
	}
	return s
}

// sameScrub reports whether a report is of the scrub in the status. Releases without scrub IDs
// report the start to about a second.
func sameScrub(before *v1alpha1.ScrubStatus, r *scrubs.Report) bool {
	if before.StartedAt == nil || before.ID != r.ID {
		return false
	}
	d := before.StartedAt.Sub(r.Started)
	return r.ID != "" || max(d, -d) < 5*time.Second
}

func findingsOf(s *v1alpha1.ScrubStatus, node string) int64 {
	for _, x := range s.Shares {
		if x.Node == node {
			return x.Findings
		}
	}
	return 0
}

// stamp converts a time to whole seconds; nil if zero.
func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	x := metav1.NewTime(t.Truncate(time.Second))
	return &x
}

// maxScrubEvents limits the events for single findings in one reconcile, because a failing disk may
// have very many.
const maxScrubEvents = 8

// recordScrub records events for new findings and for the end of a scrub.
func (r *Reconciler) recordScrub(ctx context.Context, p *v1alpha1.TargetPair, before, now *v1alpha1.ScrubStatus, v *view) {
	if now == nil {
		return
	}
	if before == nil {
		before = &v1alpha1.ScrubStatus{}
	}
	var fresh []*targetv1.ScrubFinding
	missed := int64(0)
	for _, share := range now.Shares {
		known := int64(0)
		if before.ID == now.ID {
			known = findingsOf(before, share.Node)
		}
		if share.Findings > known {
			k := v.findings(now.ID, share.Node, known)
			fresh = append(fresh, k[:min(len(k), maxScrubEvents)]...)
			missed += share.Findings - known - int64(min(len(k), maxScrubEvents))
		}
	}
	if len(fresh) > 0 {
		names := r.names(ctx, p)
		for _, f := range fresh {
			what := fmt.Sprintf("LUN or snapshot %s%s at %d+%d", f.Uuid, names[f.Uuid], f.Offset, f.Length)
			if f.Repaired {
				r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonScrubRepaired, "Scrub", what+" was repaired from the copy that hosts read")
			} else {
				r.recordEvent(p, corev1.EventTypeWarning, v1alpha1.ReasonScrubMismatched, "Scrub", what+": the two copies differ, so a disk, a disk controller or memory is faulty: replace it")
			}
		}
	}
	if missed > 0 {
		r.recordEvent(p, corev1.EventTypeWarning, v1alpha1.ReasonScrubMismatched, "Scrub", fmt.Sprintf("%d more findings: see the logs of the target pods", missed))
	}
	if l, old := now.LastResult, before.LastResult; l != nil && (old == nil || old.ID != l.ID || old.Result != l.Result) {
		kind := corev1.EventTypeNormal
		if l.Result != string(scrubs.Clean) && l.Result != string(scrubs.Repaired) {
			kind = corev1.EventTypeWarning
		}
		text := fmt.Sprintf("%s: %d of %d bytes compared, %d ranges differed, %d repaired", l.Result, l.DoneBytes, l.TotalBytes, l.MismatchedRanges, l.RepairedRanges)
		if l.Reason != "" {
			text += "; the scrub ended early: " + l.Reason
		}
		r.recordEvent(p, kind, v1alpha1.ReasonScrubFinished, "Scrub", text)
	}
}

// findings of a node's share with a number higher than after.
func (v *view) findings(id, node string, after int64) (out []*targetv1.ScrubFinding) {
	for i := range v.nodes {
		if n := &v.nodes[i]; n.name == node && n.status != nil {
			for _, x := range []*targetv1.Scrub{n.status.Scrub, n.status.LastScrub} {
				if x.GetId() != id || len(out) > 0 {
					continue
				}
				for _, f := range x.GetFindings() {
					if int64(f.Number) > after {
						out = append(out, f)
					}
				}
			}
		}
	}
	return out
}

// names of LogicalUnits by UUID, as a suffix for messages.
func (r *Reconciler) names(ctx context.Context, p *v1alpha1.TargetPair) map[string]string {
	out := map[string]string{}
	for id, lu := range r.units(ctx, p) {
		out[id] = " (" + lu.Name + ")"
	}
	return out
}
