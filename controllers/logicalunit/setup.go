package logicalunit

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/index"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/internal/lists"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/controllers/tally"
)

// workers is the number of concurrent reconciles; they mostly wait for pairs.
const workers = 64

// SetupWithManager adds the reconciler to a manager.
//
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunits,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunits/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunits/finalizers,verbs=update
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitsnapshots;targetpairs;hosts;consistencygroups,verbs=get;list;watch
// +kubebuilder:rbac:groups=gemel.storage,resources=logicalunitgroupsnapshots,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
func SetupWithManager(mgr ctrl.Manager, p pairconn.Pairs, c *chap.Keeper, g *groups.Finder, t *tally.Tally) error {
	r := &Reconciler{Tally: t, Client: mgr.GetClient(), Live: lists.Reader(mgr.GetAPIReader()), Pairs: p, Recorder: mgr.GetEventRecorder(v1alpha1.OperatorManager), CHAP: c, Groups: g}
	return r.Setup(mgr)
}

// Setup is for a Reconciler with other settings.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	if r.Tally == nil {
		t := &tally.Tally{}
		if err := t.Follow(context.Background(), mgr.GetCache()); err != nil {
			return err
		}
		r.Tally = t
	}
	b := ctrl.NewControllerManagedBy(mgr)
	if r.CHAP != nil {
		// Lost credentials are created again and sent to the targets before a host needs them.
		b = b.Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.lunsOfSecret)).
			// A Host was created, or its attach mode or profile has changed.
			Watches(&v1alpha1.Host{}, handler.EnqueueRequestsFromMapFunc(r.lunsOfHost), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return b.
		// Only changes of the spec: our own writes of status and annotations trigger no reconcile.
		For(&v1alpha1.LogicalUnit{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.LogicalUnit{}, handler.EnqueueRequestsFromMapFunc(volumeOf), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&v1alpha1.TargetPair{}, handler.EnqueueRequestsFromMapFunc(r.unplacedLUNs), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&v1alpha1.TargetPair{}, handler.EnqueueRequestsFromMapFunc(movedLUNs), builder.WithPredicates(predicate.Funcs{UpdateFunc: movesChanged})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers,
			// After a pair returns, it is called again within seconds.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 15*time.Second)}).
		Complete(r)
}

// unplacedLUNs are the LUNs of a pair's cluster without a placement: there may be room now.
func (r *Reconciler) unplacedLUNs(ctx context.Context, o client.Object) []reconcile.Request {
	pair, ok := o.(*v1alpha1.TargetPair)
	if !ok {
		return nil
	}
	return r.requestsFor(ctx, index.UnitUnplaced, pair.Spec.Cluster, func(*v1alpha1.LogicalUnit) bool { return true })
}

// movesChanged reports whether a pair names other moves than before.
func movesChanged(e event.UpdateEvent) bool {
	old, ok := e.ObjectOld.(*v1alpha1.TargetPair)
	now, also := e.ObjectNew.(*v1alpha1.TargetPair)
	return ok && also && !equality.Semantic.DeepEqual(movesOf(old), movesOf(now))
}

// movedLUNs are the LUNs that a pair names as moved, eight at most: their status has the new owner
// and the reason at once.
func movedLUNs(_ context.Context, o client.Object) (out []reconcile.Request) {
	if pair, ok := o.(*v1alpha1.TargetPair); ok {
		for _, m := range movesOf(pair) {
			if m.LogicalUnit != "" && !m.Observed {
				out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: m.LogicalUnit}})
			}
		}
	}
	return out
}

func movesOf(p *v1alpha1.TargetPair) []v1alpha1.OwnershipMove {
	if p.Status.Ownership == nil {
		return nil
	}
	return p.Status.Ownership.Moves
}

// lunsOfSecret are the LUNs of a host whose credentials have changed.
func (r *Reconciler) lunsOfSecret(ctx context.Context, o client.Object) []reconcile.Request {
	s, ok := o.(*corev1.Secret)
	if !ok {
		return nil
	}
	pair, iqn, ok := chap.OfPair(s)
	if !ok {
		return nil
	}
	iqn = strings.ToLower(iqn)
	return r.requestsFor(ctx, index.UnitHost, iqn, func(lu *v1alpha1.LogicalUnit) bool {
		return lu.Spec.Placement != nil && lu.Spec.Placement.Pair == pair && hasHost(lu, iqn)
	})
}

// lunsOfHost are the LUNs that list a host but are not mapped to it, or whose status has another
// attach mode or profile.
func (r *Reconciler) lunsOfHost(ctx context.Context, o client.Object) []reconcile.Request {
	h, ok := o.(*v1alpha1.Host)
	if !ok {
		return nil
	}
	iqn, profile := strings.ToLower(h.Spec.IQN), profileOf(h)
	return r.requestsFor(ctx, index.UnitHost, iqn, func(lu *v1alpha1.LogicalUnit) bool {
		return hasHost(lu, iqn) && !slices.ContainsFunc(lu.Status.Hosts, func(m v1alpha1.HostMapping) bool {
			return m.IQN == iqn && m.AttachMode == h.Spec.AttachMode && m.Profile == profile
		})
	})
}

// hasHost reports whether the spec lists a host.
func hasHost(lu *v1alpha1.LogicalUnit, iqn string) bool { return lu.Spec.Host(iqn) != nil }

// requestsFor are the LUNs with a value of an index for which ok is true.
func (r *Reconciler) requestsFor(ctx context.Context, name, value string, ok func(*v1alpha1.LogicalUnit) bool) (out []reconcile.Request) {
	list, err := index.Units(ctx, r, name, value)
	if err != nil {
		return nil // the periodic reconcile comes soon
	}
	for i := range list {
		if ok(&list[i]) {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: list[i].Name}})
		}
	}
	return out
}
