package pair

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/config/rbac"
)

// Nothing of what serves hosts is owned by the TargetPair in the sense of garbage collection: an object that is deleted by force,
// with its definition perhaps, must not take the targets down with it. They are removed here, and only after the pair was seen
// to hold no LUN.

// remove takes down what runs, the record last: until then an operator that comes after a crash knows the pair. Claims and volumes
// stay.
func (r *Reconciler) remove(ctx context.Context, p *v1alpha1.TargetPair) error {
	if r.CHAP != nil {
		if err := r.CHAP.Remove(ctx, p.Name); err != nil {
			return err
		}
	}
	base := Base(p.Name)
	var objs []client.Object
	add := func(o client.Object, name string) {
		o.SetNamespace(r.Namespace)
		o.SetName(name)
		objs = append(objs, o)
	}
	for _, n := range p.Spec.Nodes {
		add(&appsv1.StatefulSet{}, NodeName(p.Name, n.Name))
		add(&corev1.Service{}, NodeName(p.Name, n.Name))
		add(&corev1.Secret{}, NodeName(p.Name, n.Name))
	}
	role, binding := rbac.Target(r.Namespace, base, base)
	objs = append(objs, role, binding)
	add(&networkingv1.NetworkPolicy{}, base)
	add(&policyv1.PodDisruptionBudget{}, base)
	add(&corev1.ServiceAccount{}, base)
	add(&coordinationv1.Lease{}, base)
	for _, o := range objs {
		if err := r.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// errGone: the pair was deleted, or made again, after it was read.
var errGone = errors.New("the TargetPair has changed")

// confirm makes sure that the pair is still there before anything is made for it: a cache may be old, and what is made for a pair
// that has gone is removed by nobody. One that is being deleted and holds LUNs has what it needs made again.
func (r *Reconciler) confirm(ctx context.Context, p *v1alpha1.TargetPair) error {
	var sets appsv1.StatefulSetList
	if err := r.List(ctx, &sets, client.InNamespace(r.Namespace), client.MatchingLabels{v1alpha1.LabelPair: p.Name}); err != nil {
		return err
	}
	if len(sets.Items) == len(p.Spec.Nodes) {
		return nil
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TargetPair"))
	switch err := r.Live.Get(ctx, client.ObjectKey{Name: p.Name}, now); {
	case client.IgnoreNotFound(err) != nil:
		return err
	case err != nil, now.UID != p.UID, !controllerutil.ContainsFinalizer(now, v1alpha1.Finalizer):
		return errGone
	}
	return nil
}
