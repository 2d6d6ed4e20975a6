// Package cluster reconciles StorageClusters: it creates their pairs, removes surplus pairs that
// are empty, and sums up their status.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/internal/apply"
)

// Reconciler of StorageClusters.
type Reconciler struct {
	client.Client
	Image  string // for clusters without spec.image
	Events events.EventRecorder
}

// Reconcile reconciles a cluster with its spec.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	c := &v1alpha1.StorageCluster{}
	if err := r.Get(ctx, req.NamespacedName, c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	pairs, err := r.pairs(ctx, c)
	if err != nil {
		return ctrl.Result{}, err
	}
	v := &view{pairs: pairs}
	if !c.DeletionTimestamp.IsZero() {
		err := r.finalize(ctx, c, pairs)
		return result(err, r.writeStatus(ctx, c, v))
	}
	if controllerutil.AddFinalizer(c, v1alpha1.Finalizer) {
		if err := r.Update(ctx, c); err != nil {
			return ctrl.Result{}, err
		}
	}
	if v.workers, err = r.workers(ctx); err != nil {
		return ctrl.Result{}, err
	}
	v.layout = lay(&c.Spec, pairs, v.workers)
	next, short := possible(&c.Spec, v.layout.next, v.workers)
	v.short = short
	err = r.createPairs(ctx, c, next)
	err = errors.Join(err, r.deletePairs(ctx, c, pairs))
	return result(err, r.writeStatus(ctx, c, v))
}

// view is what was found of a cluster.
type view struct {
	pairs   []v1alpha1.TargetPair
	workers []corev1.Node
	layout  layout
	short   *metav1.Condition // why some pairs cannot be created
}

// result combines the errors of a reconcile and of its status write. After a conflict the cluster
// is reconciled again.
func result(err, status error) (ctrl.Result, error) {
	if err == nil {
		return object.RequeueIfStale(status)
	}
	return ctrl.Result{}, errors.Join(err, status)
}

// pairs of a cluster, sorted by number.
func (r *Reconciler) pairs(ctx context.Context, c *v1alpha1.StorageCluster) ([]v1alpha1.TargetPair, error) {
	l := &v1alpha1.TargetPairList{}
	if err := r.List(ctx, l); err != nil {
		return nil, err
	}
	mine := slices.DeleteFunc(l.Items, func(p v1alpha1.TargetPair) bool { return p.Spec.Cluster != c.Name })
	slices.SortFunc(mine, func(x, y v1alpha1.TargetPair) int { return pairNumber(&x) - pairNumber(&y) })
	return mine, nil
}

// pairNumber of a pair; a pair with another name is sorted last.
func pairNumber(p *v1alpha1.TargetPair) int {
	if n, ok := v1alpha1.PairNumber(p.Name, p.Spec.Cluster); ok {
		return n
	}
	return 1 << 30
}

// createPairs creates pairs. They have no owner reference, because garbage collection must not
// delete data. A pair that exists already means that the cache is behind: the couples of the pairs
// after it were decided without it, so these wait for the reconcile that its event causes.
func (r *Reconciler) createPairs(ctx context.Context, c *v1alpha1.StorageCluster, next []newPair) error {
	for _, x := range next {
		name := v1alpha1.PairName(c.Name, x.number)
		p := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelCluster: c.Name}},
			Spec: v1alpha1.TargetPairSpec{Cluster: c.Name, Nodes: []v1alpha1.PairNode{{Name: "a", Domain: x.couple[0]}, {Name: "b", Domain: x.couple[1]}}}}
		switch err := r.Create(ctx, p); {
		case err == nil && x.couple == (couple{}):
			r.Events.Eventf(c, p, corev1.EventTypeNormal, v1alpha1.ReasonProgressing, "AddPair", "pair %s is being created", name)
		case err == nil:
			r.Events.Eventf(c, p, corev1.EventTypeNormal, v1alpha1.ReasonProgressing, "AddPair", "pair %s is being created in %s", name, x.couple)
		case apierrors.IsAlreadyExists(err) && len(c.Spec.Domains) > 0:
			return nil
		case !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("pair %s: %w", name, err)
		}
	}
	return nil
}

// deletePairs deletes surplus pairs. The finalizer keeps a pair that has LUNs.
func (r *Reconciler) deletePairs(ctx context.Context, c *v1alpha1.StorageCluster, have []v1alpha1.TargetPair) error {
	var errs []error
	for i := range have {
		p := &have[i]
		if pairNumber(p) < int(c.Spec.Pairs) || !p.DeletionTimestamp.IsZero() || !c.Spec.AllowScaleDown {
			continue
		}
		if p.Status.LogicalUnits > 0 {
			r.Events.Eventf(c, p, corev1.EventTypeWarning, v1alpha1.ReasonInUse, "RemovePair", "pair %s has %d LUNs and is not removed; delete their volumes, or increase spec.pairs again", p.Name, p.Status.LogicalUnits)
			continue
		}
		errs = append(errs, client.IgnoreNotFound(r.Delete(ctx, p)))
	}
	return errors.Join(errs...)
}

// finalize removes the finalizer when all pairs are gone; an event of each pair says what prevents
// its deletion.
func (r *Reconciler) finalize(ctx context.Context, c *v1alpha1.StorageCluster, have []v1alpha1.TargetPair) error {
	var errs []error
	for i := range have {
		if have[i].DeletionTimestamp.IsZero() && have[i].Status.LogicalUnits == 0 {
			errs = append(errs, client.IgnoreNotFound(r.Delete(ctx, &have[i])))
		}
	}
	if len(have) > 0 {
		r.Events.Eventf(c, nil, corev1.EventTypeWarning, v1alpha1.ReasonInUse, "Delete", "the StorageCluster has %d pairs; each pair is removed when it has no LUN: %s", len(have), describePairs(have))
		return errors.Join(errs...)
	}
	if controllerutil.RemoveFinalizer(c, v1alpha1.Finalizer) {
		return r.Update(ctx, c)
	}
	return nil
}

func describePairs(pairs []v1alpha1.TargetPair) string {
	var parts []string
	for _, p := range pairs {
		parts = append(parts, fmt.Sprintf("%s (%d LUNs)", p.Name, p.Status.LogicalUnits))
	}
	return strings.Join(parts, ", ")
}

// writeStatus sums up the pairs.
func (r *Reconciler) writeStatus(ctx context.Context, c *v1alpha1.StorageCluster, v *view) error {
	if !c.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(c, v1alpha1.Finalizer) {
		return nil
	}
	pairs := v.pairs
	before := c.DeepCopy()
	s := &c.Status
	s.ObservedGeneration, s.Pairs, s.ReadyPairs, s.LogicalUnits = c.Generation, int32(len(pairs)), 0, 0
	if s.Image = c.Spec.Image; s.Image == "" {
		s.Image = r.Image
	}
	capacity, free := resource.NewQuantity(0, resource.BinarySI), resource.NewQuantity(0, resource.BinarySI)
	for i := range pairs {
		p := &pairs[i]
		if inSync(p) {
			s.ReadyPairs++
		}
		s.LogicalUnits += p.Status.LogicalUnits
		if p.Status.Capacity != nil && p.Status.Free != nil {
			capacity.Add(*p.Status.Capacity)
			free.Add(*p.Status.Free)
		}
	}
	s.Pools = sumPools(c.Spec.Pools, pairs)
	s.Capacity, s.Free = capacity, free
	if c.DeletionTimestamp.IsZero() {
		s.Domains = domainsStatus(&c.Spec, pairs, v.workers)
		if len(c.Spec.Domains) == 0 {
			meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionDomainsMatch)
		}
	}
	for _, x := range conditions(c, v) {
		x.ObservedGeneration = c.Generation
		meta.SetStatusCondition(&s.Conditions, x)
	}
	if equality.Semantic.DeepEqual(before.Status, c.Status) {
		return nil
	}
	if err := apply.PatchStatus(ctx, r, c, before); err != nil {
		return err
	}
	r.recordEvent(before, c)
	return nil
}

func inSync(p *v1alpha1.TargetPair) bool {
	return meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionInSync)
}

// sumPools sums up each pool of the spec over the pairs.
func sumPools(pools []v1alpha1.Pool, pairs []v1alpha1.TargetPair) (out []v1alpha1.PoolStatus) {
	for i := range pools {
		x := v1alpha1.PoolStatus{Name: pools[i].Name, Capacity: resource.NewQuantity(0, resource.BinarySI), Free: resource.NewQuantity(0, resource.BinarySI)}
		for j := range pairs {
			for _, p := range pairs[j].Status.Pools {
				if p.Name == x.Name && p.Capacity != nil && p.Free != nil {
					x.Capacity.Add(*p.Capacity)
					x.Free.Add(*p.Free)
					x.Promised, x.Promisable = sum(x.Promised, p.Promised), sum(x.Promisable, p.Promisable)
				}
			}
		}
		out = append(out, x)
	}
	return out
}

// sum adds two quantities that may not be known: a pair that has not said anything adds nothing.
func sum(a, b *resource.Quantity) *resource.Quantity {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	s := a.DeepCopy()
	s.Add(*b)
	return &s
}

// recordEvent records changes of Ready, except normal progress.
func (r *Reconciler) recordEvent(before, c *v1alpha1.StorageCluster) {
	x, old := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case old != nil && old.Status == x.Status && old.Reason == x.Reason:
	case x.Status == metav1.ConditionTrue:
		r.Events.Eventf(c, nil, corev1.EventTypeNormal, x.Reason, "Reconcile", "%s", x.Message)
	case x.Reason != v1alpha1.ReasonProgressing:
		r.Events.Eventf(c, nil, corev1.EventTypeWarning, x.Reason, "Reconcile", "%s", x.Message)
	}
}

// conditions: a cluster is ready if every pair of the spec exists and serves; it may be degraded.
func conditions(c *v1alpha1.StorageCluster, v *view) []metav1.Condition {
	pairs := v.pairs
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "every pair serves"}
	upToDate := metav1.Condition{Type: v1alpha1.ConditionUpToDate, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "every node matches the spec"}
	space := metav1.Condition{Type: v1alpha1.ConditionSpaceAvailable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "every pool of every pair has free space"}
	var down, degraded, stale, tight []string
	reason, why := v1alpha1.ReasonProgressing, v1alpha1.ReasonRolling
	for i := range pairs {
		p := &pairs[i]
		if x := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); x == nil || x.Status != metav1.ConditionTrue {
			text := "the pair has not started yet"
			if x != nil {
				text, reason = x.Message, x.Reason
			}
			down = append(down, p.Name+": "+text)
		} else if x := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionInSync); x != nil && x.Status != metav1.ConditionTrue {
			degraded = append(degraded, p.Name+": "+x.Message)
		}
		if x := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionUpToDate); x == nil || x.Status != metav1.ConditionTrue || x.ObservedGeneration != p.Generation {
			text := "the pair has not been reconciled yet"
			if x != nil {
				text, why = x.Message, x.Reason
			}
			stale = append(stale, p.Name+": "+text)
		}
		if x := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionSpaceAvailable); x != nil && x.Status != metav1.ConditionTrue {
			tight = append(tight, p.Name+": "+x.Message)
			space.Status, space.Reason = metav1.ConditionFalse, worse(space.Reason, x.Reason)
		}
	}
	switch {
	case len(down) > 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, strings.Join(down, "; ")
	case v.short != nil:
		ready = *v.short
	case len(pairs) < int(c.Spec.Pairs):
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonProgressing, fmt.Sprintf("%d of %d pairs exist", len(pairs), c.Spec.Pairs)
	case len(degraded) > 0:
		ready.Reason, ready.Message = v1alpha1.ReasonDegraded, "every pair serves; "+strings.Join(degraded, "; ")
	}
	if len(stale) > 0 {
		upToDate.Status, upToDate.Reason, upToDate.Message = metav1.ConditionFalse, why, strings.Join(stale, "; ")
	}
	if len(tight) > 0 {
		space.Message = strings.Join(tight, "; ")
	}
	all := []metav1.Condition{ready, upToDate, space}
	if len(c.Spec.Domains) > 0 && c.DeletionTimestamp.IsZero() {
		all = append(all, v.layout.condition(&c.Spec))
	}
	return all
}

// worse is the reason of SpaceAvailable that needs an administrator first.
func worse(a, b string) string {
	order := []string{v1alpha1.ReasonReady, v1alpha1.ReasonOvercommitted, v1alpha1.ReasonNearFull, v1alpha1.ReasonFull}
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}
