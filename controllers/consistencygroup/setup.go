package consistencygroup

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

const (
	workers = 4
	settle  = 2 * time.Second
)

// SetupWithManager registers the reconciler for changes of groups, claims, volumes and LUNs. c is
// the cache of claims.
//
// +kubebuilder:rbac:groups=gemel.storage,resources=consistencygroups;logicalunits;logicalunitgroupsnapshots;targetpairs,verbs=get;list;watch
// +kubebuilder:rbac:groups=gemel.storage,resources=consistencygroups/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, c groups.Cache) error {
	wait := r.Settle
	if wait == 0 {
		wait = settle
	}
	claim := &metav1.PartialObjectMetadata{}
	claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ConsistencyGroup{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// Another group of the namespace may select the same claims, or no longer.
		Watches(&v1alpha1.ConsistencyGroup{}, later[client.Object](wait, r.neighbours), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.LogicalUnit{}, later[client.Object](wait, r.ofLUN), builder.WithPredicates(predicate.Funcs{UpdateFunc: lunChanged})).
		Watches(&v1alpha1.LogicalUnitGroupSnapshot{}, later[client.Object](wait, r.ofCut), builder.WithPredicates(predicate.Funcs{UpdateFunc: cutChanged})).
		WatchesRawSource(source.Kind(c.Cache, claim, later(wait, r.ofClaim), predicate.TypedFuncs[*metav1.PartialObjectMetadata]{
			UpdateFunc: func(e event.TypedUpdateEvent[*metav1.PartialObjectMetadata]) bool {
				return !maps.Equal(e.ObjectOld.Labels, e.ObjectNew.Labels)
			}})).
		Watches(&corev1.PersistentVolume{}, later(wait, r.ofVolume), builder.WithPredicates(predicate.Funcs{UpdateFunc: boundAgain})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Named("consistencygroup").
		Complete(r)
}

// later enqueues groups after a time in which further events of them cost nothing: the queue has a
// group once. Of an update the groups of the old and of the new object are enqueued.
func later[T client.Object](wait time.Duration, of func(context.Context, T) []reconcile.Request) handler.TypedEventHandler[T, reconcile.Request] {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(ctx context.Context, q queue, objects ...T) {
		for _, o := range objects {
			for _, req := range of(ctx, o) {
				q.AddAfter(req, wait)
			}
		}
	}
	return handler.TypedFuncs[T, reconcile.Request]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[T], q queue) { add(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[T], q queue) { add(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[T], q queue) { add(ctx, q, e.Object) },
	}
}

// lunChanged reports whether a LUN has changed in what a group shows or judges.
func lunChanged(e event.UpdateEvent) bool {
	old, ok := e.ObjectOld.(*v1alpha1.LogicalUnit)
	now, also := e.ObjectNew.(*v1alpha1.LogicalUnit)
	if !ok || !also {
		return false
	}
	of := func(lu *v1alpha1.LogicalUnit) any {
		return []any{lu.Spec.Placement, lu.Spec.PreferredNode, lu.Spec.PinnedNode, lu.Status.Owner, lu.Status.PreferredNode, lu.Status.PinnedNode, lu.Status.HeldUntil, object.IsMade(lu)}
	}
	return !equality.Semantic.DeepEqual(of(old), of(now))
}

// neighbours are the other groups of the namespace.
func (r *Reconciler) neighbours(ctx context.Context, o client.Object) []reconcile.Request {
	all, err := r.Groups.InNamespace(ctx, o.GetNamespace())
	if err != nil {
		return nil // the periodic reconcile comes
	}
	var out []reconcile.Request
	for _, req := range requests(all.All()) {
		if req.Name != o.GetName() {
			out = append(out, req)
		}
	}
	return out
}

func (r *Reconciler) ofClaim(ctx context.Context, o *metav1.PartialObjectMetadata) []reconcile.Request {
	all, err := r.Groups.InNamespace(ctx, o.Namespace)
	if err != nil {
		return nil // the periodic reconcile comes
	}
	return requests(all.Matching(o.Labels))
}

// boundAgain reports whether a volume is bound to another claim than before.
func boundAgain(e event.UpdateEvent) bool {
	old, ok := e.ObjectOld.(*corev1.PersistentVolume)
	now, also := e.ObjectNew.(*corev1.PersistentVolume)
	return ok && also && !equality.Semantic.DeepEqual(old.Spec.ClaimRef, now.Spec.ClaimRef)
}

func (r *Reconciler) ofVolume(ctx context.Context, o client.Object) []reconcile.Request {
	pv, ok := o.(*corev1.PersistentVolume)
	if !ok || pv.Spec.ClaimRef == nil {
		return nil
	}
	found, err := r.Groups.Selecting(ctx, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	if err != nil {
		return nil // the periodic reconcile comes
	}
	return requests(found)
}

func (r *Reconciler) ofLUN(ctx context.Context, o client.Object) []reconcile.Request {
	lu, ok := o.(*v1alpha1.LogicalUnit)
	if !ok {
		return nil
	}
	namespace, claim, err := r.Groups.ClaimOf(ctx, lu)
	if err != nil {
		return nil // the periodic reconcile comes
	}
	found, err := r.Groups.Selecting(ctx, namespace, claim)
	if err != nil {
		return nil
	}
	return requests(found)
}

func requests(found []*v1alpha1.ConsistencyGroup) (out []reconcile.Request) {
	for _, g := range found {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: g.Namespace, Name: g.Name}})
	}
	return out
}
