package consistencygroup

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// findLastCut finds the last group snapshot that has one of the LUNs, nil if there is none.
func (r *Reconciler) findLastCut(ctx context.Context, luns map[string]*v1alpha1.LogicalUnit) (*v1alpha1.GroupCut, error) {
	if len(luns) == 0 {
		return nil, nil
	}
	ours := map[string]bool{}
	for _, lu := range luns {
		ours[lu.Name] = true
	}
	// The cache may have thousands of them: they are looked at where they are, and not changed.
	var list v1alpha1.LogicalUnitGroupSnapshotList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var last *v1alpha1.LogicalUnitGroupSnapshot
	for i := range list.Items {
		s := &list.Items[i]
		if s.OfVolume() || !s.DeletionTimestamp.IsZero() || s.Status.TakenAt == nil || !slices.ContainsFunc(s.Spec.Members, func(m v1alpha1.GroupSnapshotMember) bool { return ours[m.Source] }) {
			continue
		}
		if last == nil || last.Status.TakenAt.Before(s.Status.TakenAt) || last.Status.TakenAt.Equal(s.Status.TakenAt) && last.Name < s.Name {
			last = s
		}
	}
	if last == nil {
		return nil, nil
	}
	cut := &v1alpha1.GroupCut{LogicalUnitGroupSnapshot: last.Name, TakenAt: *last.Status.TakenAt, Ready: meta.IsStatusConditionTrue(last.Status.Conditions, v1alpha1.ConditionReady)}
	if last.Status.Held != nil {
		held := *last.Status.Held
		cut.Held = &held
	}
	for _, m := range last.Spec.Members {
		if ours[m.Source] {
			cut.Members++
		}
	}
	return cut, nil
}

// cutChanged reports whether a group snapshot has changed in what a group shows.
func cutChanged(e event.UpdateEvent) bool {
	old, ok := e.ObjectOld.(*v1alpha1.LogicalUnitGroupSnapshot)
	now, also := e.ObjectNew.(*v1alpha1.LogicalUnitGroupSnapshot)
	if !ok || !also {
		return false
	}
	of := func(s *v1alpha1.LogicalUnitGroupSnapshot) any {
		return []any{s.DeletionTimestamp.IsZero(), s.Status.TakenAt, s.Status.Held, meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady)}
	}
	return !equality.Semantic.DeepEqual(of(old), of(now))
}

// ofCut are the groups that have a LUN of a group snapshot.
func (r *Reconciler) ofCut(ctx context.Context, o client.Object) (out []reconcile.Request) {
	s, ok := o.(*v1alpha1.LogicalUnitGroupSnapshot)
	if !ok {
		return nil
	}
	for _, m := range s.Spec.Members {
		lu := &v1alpha1.LogicalUnit{}
		if r.Get(ctx, client.ObjectKey{Name: m.Source}, lu) != nil {
			continue // it is gone, or the periodic reconcile comes
		}
		for _, req := range r.ofLUN(ctx, lu) {
			if !slices.Contains(out, req) {
				out = append(out, req)
			}
		}
	}
	return out
}
