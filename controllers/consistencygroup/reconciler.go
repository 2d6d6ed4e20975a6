// Package consistencygroup answers ConsistencyGroups: this release does not support them, and each says so. Nothing is done with their
// claims, and nothing holds the objects, so that a release that supports them finds them as they were written.
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

// message says what this release does not do, and what to do instead.
func (r *Reconciler) message() string {
	return fmt.Sprintf("Gemel %s does not support ConsistencyGroups: the volumes of its claims are placed, snapshotted and moved each by itself. "+
		"For one point in time of several volumes, stop or freeze the application while their VolumeSnapshots are taken; "+
		"to place a volume, use preferredNode of its StorageClass or VolumeAttributesClass. The object may stay for a release that supports it", r.Version)
}

// Reconcile writes the condition Ready=False, and an event when that is new.
func (r *Reconciler) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.ConsistencyGroup{}
	if err := r.Get(ctx, q.NamespacedName, g); err != nil {
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

// SetupWithManager has the reconciler called for new groups and changed specs.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.ConsistencyGroup{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Named("consistencygroup").
		Complete(r)
}
