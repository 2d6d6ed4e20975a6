package cluster

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// SetupWithManager registers the reconciler for changes of clusters, their pairs, and workers.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.StorageCluster{}).
		Watches(&v1alpha1.TargetPair{}, handler.EnqueueRequestsFromMapFunc(ofPair)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.ofWorker), builder.WithPredicates(predicate.Funcs{UpdateFunc: otherWorker})).
		Named("storagecluster").
		Complete(r)
}

// otherWorker filters updates of a worker: labels and taints matter, heartbeats do not.
func otherWorker(e event.UpdateEvent) bool {
	old, ok := e.ObjectOld.(*corev1.Node)
	now, ok2 := e.ObjectNew.(*corev1.Node)
	return ok && ok2 && !(maps.Equal(old.Labels, now.Labels) && equality.Semantic.DeepEqual(old.Spec.Taints, now.Spec.Taints))
}

// ofWorker enqueues all clusters: each may lack workers.
func (r *Reconciler) ofWorker(ctx context.Context, _ client.Object) (out []reconcile.Request) {
	l := &v1alpha1.StorageClusterList{}
	if r.List(ctx, l) != nil {
		return nil // the next event of a worker or a pair retries
	}
	for _, c := range l.Items {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: c.Name}})
	}
	return out
}

func ofPair(_ context.Context, o client.Object) []reconcile.Request {
	p, ok := o.(*v1alpha1.TargetPair)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: p.Spec.Cluster}}}
}
