// Package consistencygroup reconciles ConsistencyGroups, which this release does not support: each
// gets the condition Ready False with reason NotSupported. Nothing is done with their claims, and
// they have no finalizer, so that a release that supports them finds them unchanged.
package consistencygroup

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/internal/apply"
)

// Reconciler of ConsistencyGroups.
type Reconciler struct {
	client.Client
	Version string // of this release
	Events  events.EventRecorder
}

// message says what is not supported and what to do instead.
func (r *Reconciler) message() string {
	return fmt.Sprintf("Gemel %s does not support ConsistencyGroups: the volumes of its claims are placed, snapshotted and moved independently. "+
		"For snapshots of several volumes at one point in time, stop or freeze the application while the VolumeSnapshots are taken; "+
		"to place a volume, use preferredNode of its StorageClass or VolumeAttributesClass. You can keep the object for a release that supports it", r.Version)
}

// Reconcile sets the condition Ready to False, and records an event if it has changed.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.ConsistencyGroup{}
	if err := r.Get(ctx, req.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !g.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	before := g.DeepCopy()
	f := finding.New(v1alpha1.ReasonNotSupported, "%s", r.message())
	g.Status.ObservedGeneration = g.Generation
	changed := finding.Set(&g.Status.Conditions, v1alpha1.ConditionReady, g.Generation, f, "", "")
	if equality.Semantic.DeepEqual(before.Status, g.Status) {
		return ctrl.Result{}, nil
	}
	err := apply.PatchStatus(ctx, r, g, before)
	if err == nil && changed {
		r.Events.Eventf(g, nil, corev1.EventTypeWarning, f.Reason, "Reconcile", "%s", f.Message)
	}
	return object.RequeueIfStale(err)
}

// SetupWithManager registers the reconciler for new groups and changed specs.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.ConsistencyGroup{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Named("consistencygroup").
		Complete(r)
}
