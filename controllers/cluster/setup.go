package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// SetupWithManager has the reconciler called for what changes: the cluster and its pairs.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.StorageCluster{}).
		Watches(&v1alpha1.TargetPair{}, handler.EnqueueRequestsFromMapFunc(ofPair)).
		Named("storagecluster").
		Complete(r)
}

func ofPair(_ context.Context, o client.Object) []reconcile.Request {
	p, ok := o.(*v1alpha1.TargetPair)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: p.Spec.Cluster}}}
}
