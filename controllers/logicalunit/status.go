package logicalunit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// DataKept is the message of an object that is being deleted without spec.destroy.
const DataKept = "the data is kept: to destroy the data, set spec.destroy (CSI DeleteVolume sets it); to delete only the object, remove the finalizer " + v1alpha1.Finalizer

// writeStatus writes the status and returns when to reconcile again.
func (p *pass) writeStatus(ctx context.Context, ready, published error) (ctrl.Result, error) {
	r, rok := finding.Of(ready)
	h, hok := finding.Of(published)
	// Other errors are of the API server: no condition can show them.
	switch {
	case ready != nil && !rok:
		return ctrl.Result{}, ready
	case published != nil && !hok:
		return object.RequeueIfThere(published)
	}
	next := p.lu.DeepCopy()
	p.setStatus(ctx, &next.Status)
	changed := p.conditions(&next.Status, r, h)
	wait, err := p.updateStatus(ctx, next)
	if err != nil {
		return object.RequeueIfThere(err)
	}
	if changed {
		p.recordEvents(next)
	}
	switch {
	case r != nil && r.Retry:
		return ctrl.Result{}, ready
	case h != nil && h.Retry:
		return ctrl.Result{}, published
	}
	return ctrl.Result{RequeueAfter: min(wait, p.requeueAfter())}, nil
}

// setStatus sets the fields. What could not be read stays; in particular observedGeneration stays
// behind until the pair has reported its mappings, because readers of status.hosts rely on it.
func (p *pass) setStatus(ctx context.Context, s *v1alpha1.LogicalUnitStatus) {
	if p.lu.Spec.Striped != nil {
		p.setStripedStatus(s)
		return
	}
	if p.listed {
		s.ObservedGeneration = p.lu.Generation
		p.setAttachModes(ctx)
		slices.SortFunc(p.hosts, func(a, b v1alpha1.HostMapping) int { return strings.Compare(a.IQN, b.IQN) })
		s.Hosts = p.hosts
	}
	if p.lun == nil {
		return
	}
	var pair v1alpha1.TargetPair
	known := p.Get(ctx, client.ObjectKey{Name: p.lu.Spec.Placement.Pair}, &pair) == nil
	s.Moves = moves(s, &pair.Status, p.lun, time.Now()) // before the owner of the status changes
	s.Size = resource.NewQuantity(int64(p.lun.SizeBytes), resource.BinarySI)
	s.WWID, s.Owner = p.lun.Wwid, p.lun.Owner
	s.PreferredNode, s.WriteCache = p.lun.PreferredNode, p.lun.WriteCache.Word()
	s.HeldUntil = nil
	if h := p.lun.HeldUntil; h != nil {
		s.HeldUntil = new(metav1.Unix(h.Seconds, 0))
	}
	s.Allocated = resource.NewQuantity(int64(p.lun.AllocatedBytes), resource.BinarySI)
	s.PinnedNode, s.Tier = pinOf(p.lun), v1alpha1.TierOf(p.lun.PinnedTier)
	if known {
		s.InSync = meta.IsStatusConditionTrue(pair.Status.Conditions, v1alpha1.ConditionInSync)
	}
	p.exists = p.existence(&pair)
}

// conditions sets the conditions, and reports whether one has changed.
func (p *pass) conditions(s *v1alpha1.LogicalUnitStatus, ready, published *finding.Finding) bool {
	reason, message := v1alpha1.ReasonReady, cmp.Or(p.exists, exists)
	if p.deleted() {
		reason, message = v1alpha1.ReasonDataKept, DataKept
		if ready != nil {
			ready = &finding.Finding{Reason: ready.Reason, Message: ready.Message + "; " + DataKept}
		}
	}
	a := finding.Set(&s.Conditions, v1alpha1.ConditionReady, p.lu.Generation, ready, reason, message)
	b := finding.Set(&s.Conditions, v1alpha1.ConditionPublished, p.lu.Generation, published, v1alpha1.ReasonReady,
		fmt.Sprintf("the %d hosts of the spec can reach the LUN, and no other host can", len(p.lu.Spec.Hosts)))
	return a || b
}

// lazy clears the fields that alone do not require an immediate write.
func lazy(s *v1alpha1.LogicalUnitStatus) *v1alpha1.LogicalUnitStatus {
	c := s.DeepCopy()
	c.Owner, c.Moves, c.InSync, c.Allocated = "", nil, false, nil
	return c
}

// keepAllocated keeps the number of bytes that the status has while nothing else has changed and
// they differ by less than 1% of the size: a cluster of ten thousand LUNs that are written to would
// otherwise write ten thousand statuses a minute. From and to zero is always a change.
func keepAllocated(old, now *v1alpha1.LogicalUnitStatus) {
	if old.Allocated == nil || now.Allocated == nil || now.Size == nil {
		return
	}
	d := now.Allocated.Value() - old.Allocated.Value()
	if max(d, -d) < now.Size.Value()/100 && onlyAllocated(old, now) {
		now.Allocated = old.Allocated
	}
}

// allocatedPerSecond limits the writes of statuses of which nothing but the allocated bytes has
// changed, of all LUNs together: what hosts write must not become a load of the API server. With
// ten thousand LUNs that are all written to, a status follows within an hour.
const allocatedPerSecond = 3

func (r *Reconciler) allocatedWrites() *rate.Limiter {
	r.allocatedOnce.Do(func() { r.allocated = rate.NewLimiter(allocatedPerSecond, 10*allocatedPerSecond) })
	return r.allocated
}

// onlyAllocated reports whether nothing else has changed, and there was and is data, or none.
func onlyAllocated(old, now *v1alpha1.LogicalUnitStatus) bool {
	if old.Allocated == nil || now.Allocated == nil || old.Allocated.IsZero() != now.Allocated.IsZero() {
		return false
	}
	same := *now
	same.Allocated = old.Allocated
	return equality.Semantic.DeepEqual(*old, same)
}

// updateStatus writes the status if it has changed, for lazy fields alone at most once per Lazy;
// wait is the time until the next write is due.
func (p *pass) updateStatus(ctx context.Context, next *v1alpha1.LogicalUnit) (wait time.Duration, err error) {
	wait = p.requeueAfter()
	keepAllocated(&p.lu.Status, &next.Status)
	if equality.Semantic.DeepEqual(p.lu.Status, next.Status) {
		return wait, nil
	}
	pause := p.Lazy
	if pause == 0 {
		pause = 30 * time.Second
	}
	if left := pause - time.Since(p.lastStatusWrite(p.lu.UID)); left > 0 && equality.Semantic.DeepEqual(lazy(&p.lu.Status), lazy(&next.Status)) {
		return left, nil
	}
	if onlyAllocated(&p.lu.Status, &next.Status) && !p.allocatedWrites().Allow() {
		return wait, nil
	}
	if err := p.Status().Update(ctx, next, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
		return 0, fmt.Errorf("status of LogicalUnit %s: %w", p.lu.Name, err)
	}
	p.statusWrites.Store(p.lu.UID, time.Now())
	return wait, nil
}

// recordEvents records events for changed conditions.
func (p *pass) recordEvents(lu *v1alpha1.LogicalUnit) {
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished} {
		c := meta.FindStatusCondition(lu.Status.Conditions, kind)
		old := meta.FindStatusCondition(p.lu.Status.Conditions, kind)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason {
			continue
		}
		level := corev1.EventTypeNormal
		if c.Status != "True" || c.Reason == v1alpha1.ReasonDataKept {
			level = corev1.EventTypeWarning
		}
		// Normal progress is not worth an event.
		if c.Reason != v1alpha1.ReasonProgressing && (kind == v1alpha1.ConditionReady || c.Status != "True") {
			p.Recorder.Eventf(lu, nil, level, c.Reason, "Reconcile", "%s", c.Message)
		}
	}
}
