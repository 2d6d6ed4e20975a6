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

// The objects of the targets have no owner reference to the TargetPair: a TargetPair that is
// deleted by force, perhaps with its CRD, must not take the targets down through garbage
// collection. They are removed here, and only when the pair has no LUN.

// remove deletes the targets, and the record (the Lease) last: until then the operator still knows
// the pair after a crash. Claims and volumes stay.
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

// errGone: the pair was deleted, or created again, after it was read.
var errGone = errors.New("the TargetPair has changed")

// confirmExists checks that the pair still exists before anything is created for it: the cache may
// be stale, and what is created for a deleted pair is never removed. A pair that is being deleted
// but has LUNs still gets what it needs.
func (r *Reconciler) confirmExists(ctx context.Context, p *v1alpha1.TargetPair) error {
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
