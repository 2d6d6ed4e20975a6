package groupsnapshot

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/lists"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// workers is the number of concurrent reconciles. They mostly wait for pairs, and those that wait
// for one that hangs leave enough for the others.
const workers = 32

// SetupWithManager adds the reconciler to a manager.
//
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitgroupsnapshots,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitgroupsnapshots/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitgroupsnapshots/finalizers,verbs=update
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitsnapshots,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=gemel.storage,resources=targetpairs,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
func SetupWithManager(mgr ctrl.Manager, p pairconn.Pairs) error {
	r := &Reconciler{Client: mgr.GetClient(), Live: lists.Reader(mgr.GetAPIReader()), Pairs: p, Recorder: mgr.GetEventRecorder(v1alpha1.OperatorManager)}
	return r.Setup(mgr)
}

// Setup is for a Reconciler with other settings.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.LogicalUnitGroupSnapshot{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.LogicalUnitSnapshot{}, handler.EnqueueRequestsFromMapFunc(groupOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 15*time.Second)}).
		Complete(r)
}

// groupOf is the group of a member.
func groupOf(_ context.Context, o client.Object) []reconcile.Request {
	if s, ok := o.(*v1alpha1.LogicalUnitSnapshot); ok && s.Spec.Group != "" {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: s.Spec.Group}}}
	}
	return nil
}
