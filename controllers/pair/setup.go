package pair

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// workers is the number of concurrent reconciles. They mostly wait for nodes, and one that does not
// answer takes seconds of a reconcile.
const workers = 16

// SetupWithManager registers the reconciler for changes of pairs, their clusters and their objects.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.TargetPair{}).
		Watches(&appsv1.StatefulSet{}, handler.EnqueueRequestsFromMapFunc(ofPair)).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(ofPair)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(ofPair)).
		Watches(&corev1.ServiceAccount{}, handler.EnqueueRequestsFromMapFunc(ofPair), builder.OnlyMetadata).
		Watches(&rbacv1.Role{}, handler.EnqueueRequestsFromMapFunc(ofPair), builder.OnlyMetadata).
		Watches(&rbacv1.RoleBinding{}, handler.EnqueueRequestsFromMapFunc(ofPair), builder.OnlyMetadata).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(ofPair), builder.OnlyMetadata).
		Watches(&networkingv1.NetworkPolicy{}, handler.EnqueueRequestsFromMapFunc(ofPair), builder.OnlyMetadata).
		Watches(&v1alpha1.StorageCluster{}, handler.EnqueueRequestsFromMapFunc(r.ofCluster)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Named("targetpair").
		Complete(r)
}

// ofPair enqueues the pair that the label of an object names.
func ofPair(_ context.Context, o client.Object) []reconcile.Request {
	if p := o.GetLabels()[v1alpha1.LabelPair]; p != "" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: p}}}
	}
	return nil
}

func (r *Reconciler) ofCluster(ctx context.Context, o client.Object) (out []reconcile.Request) {
	l := &v1alpha1.TargetPairList{}
	if r.List(ctx, l) != nil {
		return nil // the periodic reconcile comes soon
	}
	for _, p := range l.Items {
		if p.Spec.Cluster == o.GetName() {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: p.Name}})
		}
	}
	return out
}
