package snapshot

import (
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

// workers is the number of concurrent reconciles.
const workers = 8

// SetupWithManager adds the reconciler to a manager.
//
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitsnapshots,verbs=get;list;watch;update;patch;delete
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitsnapshots/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitsnapshots/finalizers,verbs=update
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunits;logicalunitgroupsnapshots;targetpairs,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
func SetupWithManager(mgr ctrl.Manager, p pairconn.Pairs) error {
	r := &Reconciler{Client: mgr.GetClient(), Live: lists.Reader(mgr.GetAPIReader()), Pairs: p, Recorder: mgr.GetEventRecorder(v1alpha1.OperatorManager)}
	return r.Setup(mgr)
}

// Setup is for a Reconciler with other settings.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.LogicalUnitSnapshot{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// The status of a part, of which generations say nothing, is that of the whole.
		Watches(&v1alpha1.LogicalUnitSnapshot{}, handler.EnqueueRequestsFromMapFunc(wholeOf)).
		// A group was published, or is being destroyed.
		Watches(&v1alpha1.LogicalUnitGroupSnapshot{}, handler.EnqueueRequestsFromMapFunc(r.membersOf),
			builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 15*time.Second)}).
		Complete(r)
}
