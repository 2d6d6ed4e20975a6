package logicalunit

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairs"
)

// workers is how many LUNs are worked on at once; they mostly wait for pairs.
const workers = 32

// SetupWithManager adds the reconciler to a manager.
//
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunits,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunits/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunits/finalizers,verbs=update
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitsnapshots;targetpairs,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
func SetupWithManager(mgr ctrl.Manager, p pairs.Pairs) error {
	r := &Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Pairs: p, Recorder: mgr.GetEventRecorder(v1alpha1.OperatorManager)}
	return r.Setup(mgr)
}

// Setup is for a Reconciler with other settings.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		// Only what somebody wants: our own status and annotations wake nobody.
		For(&v1alpha1.LogicalUnit{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.TargetPair{}, handler.EnqueueRequestsFromMapFunc(r.waiting), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers,
			// A pair that is away is asked for again within seconds of its return.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 15*time.Second)}).
		Complete(r)
}

// waiting are the LUNs of a pair's cluster that have no place yet: there may be room now.
func (r *Reconciler) waiting(ctx context.Context, o client.Object) (out []reconcile.Request) {
	pair, ok := o.(*v1alpha1.TargetPair)
	var list v1alpha1.LogicalUnitList
	if !ok || r.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	for i := range list.Items {
		if lu := &list.Items[i]; lu.Spec.Placement == nil && lu.Spec.Cluster == pair.Spec.Cluster {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: lu.Name}})
		}
	}
	return out
}
